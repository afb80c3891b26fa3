-- The scripts run in Redis: Lua 5.1 with these globals and no others. Each
-- algorithm's file adds its function to `algorithms`, which lua.go makes a local
-- of the whole script.
std = "lua51"
globals = { "algorithms" }
read_globals = { "redis", "KEYS", "ARGV" }
max_line_length = 120
