package quota

import (
	"context"
	"errors"
	"time"
)

// Waiters bounds how many requests of a process wait for their turn at a limit
// with a MaxDelay. Each holds a goroutine, and a connection of its client.
type Waiters struct{ places chan struct{} }

// NewWaiters lets up to most requests wait at once; 0 lets none.
func NewWaiters(most int) *Waiters { return &Waiters{make(chan struct{}, max(0, most))} }

// Waiting is how many requests have a place now. A request has one from before it
// is decided, since its turn cannot be refused once it is reserved.
func (w *Waiters) Waiting() int { return len(w.places) }

// Shape gives a store whose Spend returns when it is the request's turn. Where all
// places are taken it refuses what would have to wait. A context that ends while
// the request waits gives its charge back, as far as nobody has been charged since
// (see Request.Undo), and returns the context's error.
func (w *Waiters) Shape(store Store) Store { return shaped{store, w} }

type shaped struct {
	Store
	waiters *Waiters
}

// undoTimeout is for giving back what a request was charged that went away.
const undoTimeout = time.Second

func (s shaped) Spend(ctx context.Context, r Request) (Decision, error) {
	if r.Policy == nil || !r.Policy.Delays() || r.Cost < 1 {
		return s.Store.Spend(ctx, r)
	}
	select {
	case s.waiters.places <- struct{}{}:
		defer func() { <-s.waiters.places }()
	default:
		r.Policy = r.Policy.Impatient()
	}
	d, err := s.Store.Spend(ctx, r)
	if err != nil || d.Wait == 0 {
		return d, err
	}
	turn := time.NewTimer(d.Wait)
	defer turn.Stop()
	select {
	case <-turn.C:
		return d, nil
	case <-ctx.Done():
		back := r
		back.Cost, back.UpTo, back.Undo = -d.Charged, false, &d
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		_, failed := s.Store.Spend(undo, back)
		return Decision{}, errors.Join(ctx.Err(), failed)
	}
}
