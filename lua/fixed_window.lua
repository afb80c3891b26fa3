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

algorithms.fixed_window = function(counter, limit, cost, now, args)
  local ends, horizon
  if #args == 1 then
    ends, horizon = now + args[1], now + 2 * args[1]
  else
    for i = 1, #args - 2 do
      if args[i] <= now and now < args[i + 1] then
        ends, horizon = args[i + 1], args[i + 2]
      end
    end
    if not ends then
      return nil -- the caller's clock is more than a window away from ours
    end
  end

  local used, unreadable = 0, false
  if counter then
    if #counter.values ~= 1 or counter.values[1] < 0 or counter.expires > horizon then
      unreadable = true
    elseif counter.expires > now then
      used, ends = counter.values[1], counter.expires
    end
  end

  local retry = 0
  if cost > limit then
    retry = -1
  elseif cost > 0 and used + cost > limit then
    retry = ends - now
  end

  local function standing(units)
    local left = units > 0 and ends - now or 0
    return { remaining = math.max(0, limit - units), next = left, reset = left }
  end
  return {
    retry = retry,
    before = standing(used),
    after = standing(math.max(0, used + cost)),
    charged = { expires = ends, values = { math.max(0, used + cost) } },
    unreadable = unreadable,
  }
end
