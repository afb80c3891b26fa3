package redisstore

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/quota"
)

// line takes requests to Redis. Those that come while others are on their way
// travel together: in one call of the script if they have their policy in common,
// in one pipeline in any case. Under load a request costs its share of a call and
// of a round trip; alone it leaves at once.
type line struct {
	store *Store

	mu      sync.Mutex
	queue   []*passenger
	senders int
}

const (
	// maxSenders: at two, one pipeline is decided while the next is written.
	maxSenders = 2
	// maxTogether bounds how long the first of a pipeline waits for its last.
	maxTogether = 512
	// maxRequests bounds for how long a call keeps Redis from others, to less
	// than half a millisecond.
	maxRequests = 64
)

// passenger is a request on its way.
type passenger struct {
	ctx      context.Context
	request  quota.Request
	prepared *prepared
	decision quota.Decision
	err      error
	done     chan struct{}
}

// arrived are passengers that can travel again.
var arrived = sync.Pool{New: func() any { return &passenger{done: make(chan struct{}, 1)} }}

// take brings a request to Redis and back. The context's end is the end of the
// wait; the request may be decided all the same.
func (l *line) take(ctx context.Context, r quota.Request, p *prepared) (quota.Decision, error) {
	if err := ctx.Err(); err != nil {
		return quota.Decision{}, unavailable(err)
	}
	me := arrived.Get().(*passenger)
	me.ctx, me.request, me.prepared = ctx, r, p
	l.mu.Lock()
	l.queue = append(l.queue, me)
	start := l.senders < maxSenders
	if start {
		l.senders++
	}
	l.mu.Unlock()
	if start {
		go l.run()
	}
	select {
	case <-me.done:
		d, err := me.decision, me.err
		*me = passenger{done: me.done}
		arrived.Put(me)
		return d, err
	case <-ctx.Done():
		return quota.Decision{}, unavailable(ctx.Err()) // it is still under way
	}
}

func (p *passenger) arrive(d quota.Decision, err error) {
	p.decision, p.err = d, err
	p.done <- struct{}{}
}

// run sends until nobody waits.
func (l *line) run() {
	var boarding []*passenger
	var calls departures
	for {
		// Those who can run now may have requests too.
		runtime.Gosched()
		l.mu.Lock()
		n := min(len(l.queue), maxTogether)
		if n == 0 {
			l.senders--
			l.mu.Unlock()
			return
		}
		boarding = append(boarding[:0], l.queue[:n]...)
		rest := copy(l.queue, l.queue[n:])
		clear(l.queue[rest:])
		l.queue = l.queue[:rest]
		l.mu.Unlock()

		calls.reset()
		for _, p := range boarding {
			// Nobody would follow the decision of one who has left.
			if err := p.ctx.Err(); err != nil {
				p.arrive(quota.Decision{}, unavailable(err))
				continue
			}
			calls.board(p, l.store)
		}
		clear(boarding)
		l.exchange(calls.all)
	}
}

// afterwards is for those who wait to see their own deadline before the
// connection's.
const afterwards = 10 * time.Millisecond

// exchange sends calls in one pipeline and lets their passengers arrive.
func (l *line) exchange(calls []*call) {
	if len(calls) == 0 {
		return
	}
	ctx, cancel := deadline(calls)
	defer cancel()
	pipe := l.store.client.Pipeline()
	commands := make([]*redis.RawCmd, len(calls))
	for i, c := range calls {
		commands[i] = redis.NewRawCmd(ctx, c.arguments(l.store)...)
		_ = pipe.Process(ctx, commands[i])
	}
	_, failed := pipe.Exec(ctx)
	for i, c := range calls {
		raw, err := commands[i].Result()
		if err == nil && raw == nil {
			err = failed
		}
		l.land(ctx, c, raw, err)
	}
}

// land reads the reply to a call. What can be mended is sent once more: a script
// that the server has lost, a call that is for another server, and boundaries around
// a clock that is more than a window wrong.
func (l *line) land(ctx context.Context, c *call, raw []byte, err error) {
	if err != nil {
		err = unavailable(err)
	} else {
		err = c.read(raw, l.store)
	}
	if errors.Is(err, errNoScript) || errors.Is(err, errElsewhere) {
		err = c.runText(ctx, l.store)
	}
	if errors.Is(err, errOutOfBounds) {
		c.arguments(l.store)
		err = c.runText(ctx, l.store)
	}
	c.arrive(err)
}

// deadline is until when the last of the passengers waits.
func deadline(calls []*call) (context.Context, context.CancelFunc) {
	var latest time.Time
	for _, c := range calls {
		for i := range c.seats {
			for _, p := range c.seats[i].all {
				at, bounded := p.ctx.Deadline()
				if !bounded {
					return context.Background(), func() {}
				}
				if at.After(latest) {
					latest = at
				}
			}
		}
	}
	return context.WithDeadline(context.Background(), latest.Add(afterwards))
}
