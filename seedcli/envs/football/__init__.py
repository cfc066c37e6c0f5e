"""Google Research Football: its scenarios, engines in threads, rewards, and a drawing of the pitch. It may import
what `envs` may, and gfootball when it is first needed. No other family depends on it.
"""
