"""The sentences for people, made from the reasons of a plan."""
