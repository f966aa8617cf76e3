"""The hands: on any platform, the one loop that decides, and everything it talks to."""
