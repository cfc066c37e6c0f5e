"""Protection of connections: the shared token, keys derived from it, certificates, and the handlers that check them.

It imports only `errors` and the address functions of `net`. It does not know what is sent.
"""
