"""The store on a server that speaks as MongoDB does, for controllers that share what they learn."""
