-- Holds plugin configurations, and whole declarative ones, to the schema code of a Kong
-- whose source is given.
--
--   luajit kong_schema.lua SOURCE <cases.json
--
-- in:  {"schema": of the plugin's dump, "name": …, "configs": […], "declarative": […]}
-- out: {"schema": "" or what Kong says of the schema, "results": [the configuration with
--      its defaults, or the message of the Admin API, …], "declarative": [how many there
--      are of each entity, or what is wrong, …]}
--
-- Kong's code runs in nginx; what it asks of it while it loads is answered here by
-- things that do nothing.
local source = arg[1]
package.path = source .. "/?.lua;" .. source .. "/?/init.lua;" .. package.path

local cjson = require "cjson"
local null = cjson.null

-- nothing is a table of which every field is such a table, and which can be called.
local nothing
nothing = setmetatable({}, { __index = function() return nothing end, __call = function() return nothing end })

local function now() return os.time() end
_G.ngx = setmetatable({
  null = null, now = now, time = now, update_time = function() end,
  config = { subsystem = "http", prefix = function() return "/" end, ngx_lua_version = 10028 },
  get_phase = function() return "init" end,
  log = function() end,
  re = {
    find = function() return 1 end, -- of ids, which are ours
    match = function() return nil end, gsub = function(text) return text, 0 end,
  },
  worker = { id = function() return 0 end, exiting = function() return false end, pid = function() return 1 end, count = function() return 1 end },
  shared = setmetatable({}, { __index = function() return nothing end }),
  md5 = function(text) return text end,
}, { __index = function() return nothing end })
_G.kong = setmetatable({ configuration = { loaded_plugins = {}, role = "traditional", pluginservers = {} } }, { __index = function() return nothing end })

package.preload["table.new"] = package.preload["table.new"] or function() return function() return {} end end
package.preload["table.nkeys"] = function()
  return function(t) local n = 0; for _ in pairs(t) do n = n + 1 end; return n end
end
package.preload["table.clone"] = function()
  return function(t) local c = {}; for k, v in pairs(t) do c[k] = v end; return c end
end
package.preload["table.isarray"] = function()
  return function(t) local n = 0; for k in pairs(t) do if type(k) ~= "number" then return false end; n = n + 1 end; return n == #t end
end
package.preload["table.isempty"] = function() return function(t) return next(t) == nil end end
package.preload["cjson.safe"] = function()
  return setmetatable({ encode = cjson.encode, decode = function(t) local ok, v = pcall(cjson.decode, t); if ok then return v end; return nil, v end, null = null, array_mt = {}, empty_array = {}, new = function() return require "cjson.safe" end }, { __index = function() return nothing end })
end
cjson.array_mt = cjson.array_mt or {}
cjson.empty_array_mt = cjson.empty_array_mt or {}
cjson.empty_array = cjson.empty_array or {}

package.preload["kong.pdk.vault"] = function()
  return { is_reference = function(text) return type(text) == "string" and text:sub(1, 9) == "{vault://" and text:sub(-1) == "}" and #text > 10 end }
end
-- Kong's small functions over texts are right about everything.
local anything = setmetatable({}, { __index = function(_, key) if key == "host" then return "host" end end })
for _, name in ipairs {
  "kong.tools.time", "kong.tools.rand", "kong.tools.yield", "kong.tools.http", "kong.tools.ip", "kong.tools.system",
  "kong.db.schema.json", "kong.tools.queue_schema", "kong.observability.tracing.propagation.schema",
} do
  package.preload[name] = function()
    return setmetatable({}, { __index = function() return function() return anything end end })
  end
end
package.preload["kong.tools.uri"] = function() return { normalize = function(path) return path end } end
local ids = 0
local function id()
  ids = ids + 1
  return ("df962853-6b17-575c-9f5a-%012d"):format(ids)
end
package.preload["kong.tools.uuid"] = function() return { uuid = id, is_valid_uuid = function() return true end } end
package.preload["resty.jit-uuid"] = function()
  return { factory_v5 = function() return id end, generate_v4 = id, is_valid = function() return true end }
end

-- Whatever else is missing does nothing, and its name is told.
local told = {}
table.insert(package.loaders or package.searchers, function(name)
  if os.getenv("VERBOSE") and not told[name] then told[name] = true; io.stderr:write("nothing for ", name, "\n") end
  if name:find("^kong%.") then return nil end
  return function() return nothing end
end)

local input = cjson.decode(io.read("*a"))

package.preload["kong.runloop.plugin_servers"] = function()
  return { load_schema = function(name) if name == input.name then return true, input.schema end return false end }
end
package.preload["kong.runloop.wasm"] = function() return nothing end
package.preload["kong.runloop.wasm.plugins"] = function() return { load_schema = function() return false end } end

local MetaSchema = require "kong.db.schema.metaschema"
local Entity = require "kong.db.schema.entity"
local Errors = require "kong.db.errors"
local errors = Errors.new()

for _, name in ipairs { "routes", "services", "consumers" } do -- which plugins refer to
  assert(Entity.new { name = name, primary_key = { "id" }, fields = { { id = { type = "string", uuid = true } } } })
end
local plugins = assert(Entity.new(require "kong.db.schema.entities.plugins"))
local out = { schema = "", results = {}, declarative = {} }
local ok, problem = MetaSchema.MetaSubSchema:validate(input.schema)
if not ok then
  out.schema = tostring(errors:schema_violation(problem))
else
  assert(Entity.new_subschema(plugins, input.name, input.schema))
  -- Twice: a conditional check remembers the field that it is about when it has run
  -- once, and says another thing of a missing one from then on.
  for _ = 1, 2 do for i, config in ipairs(input.configs) do
    local entity, err = plugins:process_auto_fields({ id = "df962853-6b17-575c-9f5a-384eb04f9213", name = input.name, config = config }, "insert")
    local valid, violations
    if entity then valid, violations = plugins:validate_insert(entity) else violations = err end
    out.results[i] = valid and entity.config or errors:schema_violation(violations).message
  end end
end
if #input.declarative > 0 then
  local declarative = assert(require("kong.db.schema.others.declarative_config").load({ ["key-auth"] = true, [input.name] = true }, {}))
  for i, config in ipairs(input.declarative) do
    local entities, wrong = declarative:flatten(config)
    local counts = {}
    for kind, all in pairs(entities or {}) do
      counts[kind] = 0
      for _ in pairs(all) do counts[kind] = counts[kind] + 1 end
    end
    out.declarative[i] = entities and counts or require("pl.pretty").write(wrong, "")
  end
end
io.write(cjson.encode(out))
