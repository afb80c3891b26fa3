package pluginserver

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Event is one request in a phase. Kong waits for it and answers what it is asked
// by the way: each question is a call to Kong's PDK. It is of one goroutine, and
// of no use when its handler has returned.
type Event struct {
	wire *wire
	ctx  context.Context
	// tells are the calls that were written without waiting for their replies.
	tells int
	gone  bool // Kong was told to end the request, and answers no more
}

// Context ends when the server is made to stop before the event is over.
func (e *Event) Context() context.Context { return e.ctx }

// Question is a call whose answer is a text, or a message of which one text is of
// interest: an entity's id, for example.
type Question struct {
	Method   string // e.g. kong.client.get_consumer
	Argument string // the text that the method takes, "" for none
	Field    int    // number of the text in the message; 0 is the first, 1
	Answer   string // "" if there is none
}

// Ask asks Kong, all questions in one turn; they are answered in order. The error
// means that Kong is gone, or has ended the request for an error of its own.
func (e *Event) Ask(questions []Question) error {
	for _, q := range questions {
		e.method(q.Method)
		start := e.wire.frame()
		if q.Argument != "" {
			e.wire.out = appendText(e.wire.out, 1, q.Argument)
		}
		e.wire.end(start)
	}
	if err := e.settle(); err != nil {
		return err
	}
	for i := range questions {
		reply, err := e.wire.read()
		if err != nil {
			return fmt.Errorf("asking Kong: %s: %w", questions[i].Method, err)
		}
		if questions[i].Answer, err = text(reply, protowire.Number(max(1, questions[i].Field))); err != nil {
			return fmt.Errorf("asking Kong: %s: %w", questions[i].Method, err)
		}
	}
	return nil
}

// Header is a header to set, or to remove where the method allows that.
type Header struct {
	Name, Value string
	Remove      bool
}

// SetHeaders calls a method that takes headers, such as kong.response.set_headers.
// It goes with the next turn; nobody waits for it.
func (e *Event) SetHeaders(method string, headers []Header) {
	e.method(method)
	start := e.wire.frame()
	e.wire.out = appendHeaders(e.wire.out, headers)
	e.wire.end(start)
	e.tells++
}

// Exit answers the client. Kong ends the request and closes the connection.
func (e *Event) Exit(status int, body []byte, headers []Header) {
	e.method("kong.response.exit")
	start := e.wire.frame()
	out := protowire.AppendTag(e.wire.out, 1, protowire.VarintType)
	out = protowire.AppendVarint(out, uint64(int64(status)))
	if len(body) > 0 {
		out = protowire.AppendTag(out, 2, protowire.BytesType)
		out = protowire.AppendBytes(out, body)
	}
	if len(headers) > 0 {
		out = protowire.AppendTag(out, 3, protowire.BytesType)
		out = appendMessage(out, func(out []byte) []byte { return appendHeaders(out, headers) })
	}
	e.wire.out = out
	e.wire.end(start)
	e.gone = true
}

// method writes the frame that names the call.
func (e *Event) method(name string) {
	start := e.wire.frame()
	e.wire.out = append(e.wire.out, name...)
	e.wire.end(start)
}

// settle sends what is written and reads the replies that nobody waited for.
func (e *Event) settle() error {
	if err := e.wire.flush(); err != nil {
		return fmt.Errorf("telling Kong: %w", err)
	}
	for ; e.tells > 0; e.tells-- {
		if _, err := e.wire.read(); err != nil {
			return fmt.Errorf("telling Kong: %w", err)
		}
	}
	return nil
}

// What follows writes and reads protocol buffers by hand, for the few small messages
// that every request needs. Tests compare each with go-pdk's own.

func appendText(out []byte, field protowire.Number, text string) []byte {
	out = protowire.AppendTag(out, field, protowire.BytesType)
	return protowire.AppendString(out, text)
}

// appendMessage appends a message with its length before it.
func appendMessage(out []byte, message func([]byte) []byte) []byte {
	start := len(out)
	out = append(out, 0) // the length of most is one byte
	out = message(out)
	size := len(out) - start - 1
	if size < 1<<7 {
		out[start] = byte(size)
		return out
	}
	extra := protowire.SizeVarint(uint64(size)) - 1
	out = append(out, make([]byte, extra)...)
	copy(out[start+1+extra:], out[start+1:start+1+size])
	protowire.AppendVarint(out[start:start], uint64(size))
	return out
}

// appendHeaders appends a google.protobuf.Struct: a text for each header, an empty
// list for one to remove.
func appendHeaders(out []byte, headers []Header) []byte {
	for _, h := range headers {
		out = protowire.AppendTag(out, 1, protowire.BytesType) // Struct.fields
		out = appendMessage(out, func(out []byte) []byte {
			out = appendText(out, 1, h.Name)
			out = protowire.AppendTag(out, 2, protowire.BytesType)
			return appendMessage(out, func(out []byte) []byte { // Value
				if h.Remove {
					return append(out, 6<<3|byte(protowire.BytesType), 0) // list_value
				}
				return appendText(out, 3, h.Value) // string_value
			})
		})
	}
	return out
}

// text gives the text in a message's field, "" if it has none.
func text(message []byte, of protowire.Number) (text string, err error) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return "", protowire.ParseError(n)
		}
		message = message[n:]
		if field == of && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return "", protowire.ParseError(n)
			}
			text, message = string(value), message[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(field, kind, message); n < 0 {
			return "", protowire.ParseError(n)
		}
		message = message[n:]
	}
	return text, nil
}
