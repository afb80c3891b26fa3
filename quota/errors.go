package quota

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by the error of a store that gave no answer: it was
// not reached, or not within the deadline. The decision is then Unknown, and
// what happens to the request is the caller's failure policy.
var ErrUnavailable = errors.New("the store of the counters gave no answer")

// FieldError says which field holds which value, and the rule that it breaks.
type FieldError struct {
	Field string // path from the root of the input, e.g. limits[2].timezone; list positions count from 1, as Kong's do
	Value any
	Rule  string // what holds for a good value, e.g. "must be an IANA timezone"
}

func (e *FieldError) Error() string {
	if text, ok := e.Value.(string); ok {
		return fmt.Sprintf("%s: %q %s", e.Field, text, e.Rule)
	}
	return fmt.Sprintf("%s: %v %s", e.Field, e.Value, e.Rule)
}
