"""`seed bench`: each figure of this machine against a bare loop that runs beside it. It may import everything but
`cli`. Nothing but `cli` imports it.
"""
