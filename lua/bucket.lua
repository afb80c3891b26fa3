-- leaky_bucket and token_bucket: the leaky bucket as a meter, and the token
-- bucket, which is the same seen from the other side: a funnel filled with n
-- units is a bucket that lacks n tokens. It holds `limit` units.
--
-- The rate is a fraction in lowest terms, units / micros a microsecond, so that
-- one per seven seconds does not drift. The level is counted in parts: micros to
-- a unit, of which `units` drain in a microsecond.
--
-- Arguments  2: units, micros
-- Limit      the burst
-- Counter
--   until   when the bucket is empty
--   level   parts
--   micros  parts of a unit; they change with the rate, and the level is then
--           converted, a begun unit as a whole one
--   at      the moment that the level is of, µs
-- A clock that stepped back drains nothing until it is where it was; one that
-- has more than a full bucket to catch up with is unreadable.

algorithms.leaky_bucket = function(counter, limit, cost, now, args)
  local most = 2 ^ 52 -- parts
  local units, micros = args[1], args[2]
  local function up(a, b) -- a / b, rounded up
    local rest = math.fmod(a, b)
    return (a - rest) / b + (rest > 0 and 1 or 0)
  end
  local function pay_off(parts)
    return up(parts, units)
  end

  local level, at, unreadable = 0, now, false
  if counter then
    local held, parts, since = counter.values[1], counter.values[2], counter.values[3]
    if #counter.values ~= 3 or held < 0 or held > most or parts < 1 or parts > most or since < 0
      or since > now + pay_off(limit * micros) then
      unreadable = true
    elseif parts ~= micros and up(held, parts) > (most - math.fmod(most, micros)) / micros then
      unreadable = true
    else
      if parts ~= micros then
        held = up(held, parts) * micros
      end
      at = math.max(since, now)
      local passed = math.max(0, now - since)
      if passed < pay_off(held) then
        level = held - passed * units
      end
    end
  end

  local lag = at - now
  local function standing(parts)
    local room = limit * micros - parts
    local remaining = room > 0 and (room - math.fmod(room, micros)) / micros or 0
    if parts == 0 then
      return { remaining = remaining, next = 0, reset = 0 }
    end
    local surplus = math.max(0, parts - (limit - remaining - 1) * micros)
    return { remaining = remaining, next = pay_off(surplus) + lag, reset = pay_off(parts) + lag }
  end
  if cost > limit then
    return { retry = -1, before = standing(level), unreadable = unreadable }
  end
  local owed = math.max(0, level + cost * micros)
  local over, retry = owed - limit * micros, 0
  if cost > 0 and over > 0 then
    retry = pay_off(over) + lag
  end
  return {
    retry = retry,
    before = standing(level),
    after = standing(owed),
    charged = { expires = at + pay_off(owed), values = { owed, micros, at } },
    unreadable = unreadable,
  }
end
algorithms.token_bucket = algorithms.leaky_bucket
