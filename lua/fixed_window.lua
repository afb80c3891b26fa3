-- fixed_window: at most `limit` units in each window; the whole quota is back
-- when the window ends.
--
-- Arguments
--   align: first_request   1: length, µs from a window's first charge to its end
--   align: calendar        5: consecutive boundaries of windows, µs since the
--                             epoch, computed by the caller, who knows the
--                             timezones: the windows before, around and after
--                             the caller's clock, and the end of one more. The
--                             script picks by its own clock, so that a caller
--                             whose clock is wrong cannot move a window.
-- Counter
--   until   the end of the window
--   used    units charged in it
--
-- The window that a counter is in lasts until its end, also when the clock steps
-- back. Only an end beyond the window after this one is taken for unreadable.

algorithms.fixed_window = function(values, expires, limit, cost, now, arg, count)
  local ends, horizon
  if count == 1 then
    ends = now + ARGV[arg]
    horizon = ends + ARGV[arg]
  else
    for i = arg, arg + count - 3 do
      if tonumber(ARGV[i]) <= now and now < tonumber(ARGV[i + 1]) then
        ends, horizon = tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
      end
    end
    if not ends then
      return nil -- the caller's clock is more than a window away from ours
    end
  end

  local used, unreadable = 0, false
  if values then
    local held = tonumber(string.match(values, '^ (%d+)$'))
    if not held or held > 2 ^ 53 or expires > horizon then
      unreadable = true
    elseif expires > now then
      used, ends = held, expires
    end
  end

  local retry, total, left = 0, math.max(0, used + cost), ends - now
  if cost > limit then
    retry = -1
  elseif cost > 0 and total > limit then
    retry = left
  end
  local before, after = used > 0 and left or 0, total > 0 and left or 0
  return retry, unreadable,
    math.max(0, limit - used), before, before,
    math.max(0, limit - total), after, after,
    ends, ' ' .. total
end
