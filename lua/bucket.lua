-- leaky_bucket and token_bucket: the leaky bucket as a meter, and the token
-- bucket, which is the same seen from the other side: a funnel filled with n
-- units is a bucket that lacks n tokens. It holds `limit` units. With patience a
-- request also passes, and waits, if the bucket will have room soon enough.
--
-- The rate is a fraction in lowest terms, units / micros a microsecond, so that
-- one per seven seconds does not drift. The level is counted in parts: micros to
-- a unit, of which `units` drain in a microsecond.
--
-- Arguments  3: units, micros, patience in µs
-- Limit      the burst
-- Counter
--   until   when the bucket is empty
--   level   parts
--   micros  parts of a unit; they change with the rate, and the level is then
--           converted, a begun unit as a whole one
--   at      the moment that the level is of, µs
-- A clock that stepped back drains nothing until it is where it was; one that
-- has more than a full bucket to catch up with is unreadable.

algorithms.leaky_bucket = function(held, limit, cost, now, arg)
  local most = 2 ^ 52 -- parts
  local units, micros, patience = ARGV[arg] + 0, ARGV[arg + 1] + 0, ARGV[arg + 2] + 0
  local function up(a, b) -- a / b, rounded up
    local rest = math.fmod(a, b)
    return (a - rest) / b + (rest > 0 and 1 or 0)
  end

  local full, level, at, unreadable = limit * micros, 0, now, false
  local ending, parts, unit, since
  if held then
    ending, parts, unit, since = string.match(held, '^ (%d+) (%d+) (%d+) (%d+)$')
    parts, unit, since = tonumber(parts), tonumber(unit), tonumber(since)
    if parts and #ending <= 16 and ending + 0 <= now then
      level = 0 -- it has ended
    elseif not parts or parts > most or unit < 1 or unit > most or since > now + up(full, units) then
      unreadable = true
    elseif unit ~= micros and up(parts, unit) > (most - math.fmod(most, micros)) / micros then
      unreadable = true
    else
      if unit ~= micros then
        parts = up(parts, unit) * micros
      end
      at = math.max(since, now)
      local passed = math.max(0, now - since)
      if passed < up(parts, units) then
        level = parts - passed * units
      end
    end
  end

  local lag = at - now
  local retry, wait, over = 0, nil, level + cost * micros - full
  if cost > limit then
    retry = -1
  elseif cost > 0 and over > 0 then
    wait = up(over, units) + lag
    if wait > patience then
      retry, wait = wait - patience, nil
    end
  end
  return retry, unreadable, function(charge)
    local owed = math.max(0, level + charge * micros)
    local remaining, next, reset = 0, 0, 0
    if owed < full then
      remaining = (full - owed - math.fmod(full - owed, micros)) / micros
    end
    local empty = up(owed, units)
    if owed > 0 then
      next = up(math.max(0, owed - (limit - remaining - 1) * micros), units) + lag
      reset = empty + lag
    end
    if charge == 0 then
      return remaining, next, reset
    end
    local ends = at + empty
    local text = string.format(' %.0f %.0f %.0f %.0f', ends, owed, micros, at)
    return remaining, next, reset, text, tonumber(ending) ~= ends and ends or nil
  end, wait
end
algorithms.token_bucket = algorithms.leaky_bucket
