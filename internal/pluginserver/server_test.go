package pluginserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Kong/go-pdk/bridge"
	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// handler is an instance that is a function.
type handler struct {
	access func(*Event)
	closed atomic.Int32
}

func (h *handler) Access(e *Event) { h.access(e) }
func (h *handler) Close()          { h.closed.Add(1) }

// serve starts a server with one instance, 7, that runs the function.
func serve(t testing.TB, access func(*Event)) (*Server, *handler, string) {
	t.Helper()
	instance := &handler{access: access}
	s := New(func([]byte) (Instance, error) { return instance, nil }, slog.New(slog.DiscardHandler))
	path := filepath.Join(t.TempDir(), "plugin.socket")
	listener, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	t.Cleanup(func() {
		_ = listener.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = s.Stop(ctx)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	k := dial(t, path)
	k.call(&pb.RpcCall{Sequence: 1, Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: &pb.CmdStartInstance{Name: "p", Config: []byte(`{"__seq__":7}`)}}})
	if status := k.returned().GetInstanceStatus(); status.GetInstanceId() != 7 || status.GetName() != "p" {
		t.Fatalf("status %v", status)
	}
	return s, instance, path
}

// kong is Kong's side of a connection, with go-pdk's messages.
type kong struct {
	t    testing.TB
	conn net.Conn
	in   *bufio.Reader
}

func dial(t testing.TB, path string) *kong {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	return &kong{t, conn, bufio.NewReader(conn)}
}

func (k *kong) write(payload []byte) {
	k.t.Helper()
	if _, err := k.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload...)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *kong) call(call *pb.RpcCall) {
	k.t.Helper()
	text, err := proto.Marshal(call)
	if err != nil {
		k.t.Fatal(err)
	}
	k.write(text)
}

func (k *kong) event(instance int32, name string) {
	k.t.Helper()
	k.call(&pb.RpcCall{Sequence: 42, Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: instance, EventName: name}}})
}

func (k *kong) read() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(k.in, size[:]); err != nil {
		return nil, err
	}
	payload := make([]byte, binary.LittleEndian.Uint32(size[:]))
	_, err := io.ReadFull(k.in, payload)
	return payload, err
}

func (k *kong) expect(text string) []byte {
	k.t.Helper()
	payload, err := k.read()
	if err != nil || string(payload) != text {
		k.t.Fatalf("frame %q, %v; want %q", payload, err, text)
	}
	return payload
}

func (k *kong) message(m proto.Message) {
	k.t.Helper()
	payload, err := k.read()
	if err == nil {
		err = proto.Unmarshal(payload, m)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

func (k *kong) returned() *pb.RpcReturn {
	k.t.Helper()
	m := new(pb.RpcReturn)
	k.message(m)
	return m
}

func (k *kong) closed() {
	k.t.Helper()
	if payload, err := k.read(); !errors.Is(err, io.EOF) {
		k.t.Fatalf("frame %q, %v; want the end", payload, err)
	}
}

func (k *kong) reply(m proto.Message) {
	k.t.Helper()
	text, err := proto.Marshal(m)
	if err != nil {
		k.t.Fatal(err)
	}
	k.write(text)
}

func TestEvent(t *testing.T) {
	var answers []string
	_, _, path := serve(t, func(e *Event) {
		questions := []Question{{Method: "kong.client.get_consumer"}, {Method: "kong.request.get_header", Argument: "x-plan"}}
		if err := e.Ask(questions); err != nil {
			t.Error(err)
		}
		for _, q := range questions {
			answers = append(answers, q.Answer)
		}
		e.SetHeaders("kong.response.set_headers", []Header{{Name: "X-A", Value: "1"}, {Name: "X-B", Remove: true}})
	})
	k := dial(t, path)
	for range 2 {
		answers = nil
		k.event(7, "access")
		// Both questions are there before the first is answered.
		k.expect("kong.client.get_consumer")
		k.expect("")
		k.expect("kong.request.get_header")
		argument := new(pb.String)
		if k.message(argument); argument.V != "x-plan" {
			t.Errorf("argument %v", argument)
		}
		k.reply(&pb.Consumer{Id: "c-1", CreatedAt: 5, Username: "alice", Tags: []string{"a"}})
		k.reply(&pb.String{V: strings.Repeat("gold", 5000)})
		k.expect("kong.response.set_headers")
		headers := new(structpb.Struct)
		k.message(headers)
		if got := headers.AsMap(); !reflect.DeepEqual(got, map[string]any{"X-A": "1", "X-B": []any{}}) {
			t.Errorf("headers %v", got)
		}
		// The end and the return are there before the headers are acknowledged.
		k.expect("")
		if r := k.returned(); r.Sequence != 42 {
			t.Errorf("return %v", r)
		}
		k.reply(&structpb.Struct{})
		if want := []string{"c-1", strings.Repeat("gold", 5000)}; !reflect.DeepEqual(answers, want) {
			t.Errorf("answers %.60q", answers)
		}
	}
}

func TestExit(t *testing.T) {
	_, _, path := serve(t, func(e *Event) {
		e.SetHeaders("kong.response.set_headers", []Header{{Name: "X-A", Value: "1"}})
		e.Exit(429, []byte("body"), []Header{{Name: "Retry-After", Value: "5"}})
	})
	k := dial(t, path)
	k.event(7, "access")
	k.expect("kong.response.set_headers")
	k.message(new(structpb.Struct))
	k.reply(&structpb.Struct{})
	k.expect("kong.response.exit")
	args := new(pb.ExitArgs)
	k.message(args)
	if args.Status != 429 || string(args.Body) != "body" || !reflect.DeepEqual(args.Headers.AsMap(), map[string]any{"Retry-After": "5"}) {
		t.Errorf("exit %v", args)
	}
	_ = k.conn.(*net.UnixConn).CloseWrite() // Kong closes
	k.closed()                              // and no frame came after the exit
}

func TestFailures(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	s, _, path := serve(t, func(*Event) {
		if broken.Load() {
			panic("a bug")
		}
	})
	s.start = func(config []byte) (Instance, error) {
		if strings.Contains(string(config), "panic") {
			panic("a bug")
		}
		return nil, errors.New("limits: must be set")
	}
	for name, send := range map[string]func(*kong){
		"panic":                     func(k *kong) { k.event(7, "access") },
		"no such instance":          func(k *kong) { k.event(8, "access") },
		"no such phase":             func(k *kong) { k.event(7, "log") },
		"no such phase, as an enum": func(k *kong) { k.event(7, "") },
		"not protobuf":              func(k *kong) { k.write([]byte{0xff, 0xff}) },
		"an empty call":             func(k *kong) { k.write(nil) },
		"too long":                  func(k *kong) { _, _ = k.conn.Write([]byte{0xff, 0xff, 0xff, 0xff}) },
		"cut off":                   func(k *kong) { _, _ = k.conn.Write([]byte{9, 0, 0, 0, 1}); _ = k.conn.(*net.UnixConn).CloseWrite() },
		"unknown call": func(k *kong) {
			k.call(&pb.RpcCall{Sequence: 1, Call: &pb.RpcCall_CmdGetPluginNames{CmdGetPluginNames: &pb.CmdGetPluginNames{}}})
		},
		"bad config":         func(k *kong) { k.call(startCall(`{"__seq__":9}`)) },
		"config that panics": func(k *kong) { k.call(startCall(`{"panic":1}`)) },
		"config of no JSON":  func(k *kong) { k.call(startCall(`{`)) },
		"close of nothing":   func(k *kong) { k.call(closeCall(99)) },
	} {
		t.Run(name, func(t *testing.T) {
			k := dial(t, path)
			send(k)
			k.closed()
		})
	}
	broken.Store(false)
	k := dial(t, path)
	k.event(7, "access")
	k.expect("")
	k.returned()
}

func startCall(config string) *pb.RpcCall {
	return &pb.RpcCall{Sequence: 3, Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: &pb.CmdStartInstance{Name: "p", Config: []byte(config)}}}
}

func closeCall(id int32) *pb.RpcCall {
	return &pb.RpcCall{Sequence: 4, Call: &pb.RpcCall_CmdCloseInstance{CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: id}}}
}

func TestInstances(t *testing.T) {
	s, first, path := serve(t, func(*Event) {})
	k := dial(t, path)
	status := func(id int32) int32 {
		k.call(&pb.RpcCall{Sequence: 5, Call: &pb.RpcCall_CmdGetInstanceStatus{CmdGetInstanceStatus: &pb.CmdGetInstanceStatus{InstanceId: id}}})
		return k.returned().GetInstanceStatus().GetInstanceId()
	}
	if got := status(7); got != 7 {
		t.Errorf("status of %d", got)
	}
	// Another worker of Kong starts the same one.
	second := &handler{access: func(*Event) {}}
	s.start = func([]byte) (Instance, error) { return second, nil }
	k.call(startCall(`{"__seq__":7}`))
	if r := k.returned(); r.Sequence != 3 || first.closed.Load() != 1 {
		t.Errorf("return %v, the one before was closed %d times", r, first.closed.Load())
	}
	// Without a number of Kong's it gets one.
	k.call(startCall(`{}`))
	if id := k.returned().GetInstanceStatus().GetInstanceId(); id < 1 || status(id) != id {
		t.Errorf("instance %d", id)
	}
	k.call(closeCall(7))
	if r := k.returned(); r.GetInstanceStatus().GetInstanceId() != 7 || second.closed.Load() != 1 {
		t.Errorf("return %v, closed %d times", r, second.closed.Load())
	}
}

// A stop lets the requests finish, closes what is idle, and then the instances.
func TestStop(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s, instance, path := serve(t, func(*Event) { entered <- struct{}{}; <-leave })
	busy, idle := dial(t, path), dial(t, path)
	busy.event(7, "access")
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- s.Stop(context.Background()) }()
	idle.closed()
	if instance.closed.Load() != 0 {
		t.Error("the instance is closed under a request")
	}
	close(leave)
	busy.expect("")
	busy.returned()
	busy.closed()
	if err := <-stopped; err != nil || instance.closed.Load() != 1 {
		t.Errorf("%v, closed %d times", err, instance.closed.Load())
	}
}

func TestStopInTime(t *testing.T) {
	entered := make(chan struct{})
	s, _, path := serve(t, func(e *Event) { close(entered); <-e.Context().Done() })
	k := dial(t, path)
	k.event(7, "access")
	<-entered
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Stop(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	k.closed()
}

// After a reload of Kong the next server has the path; the one before leaves it.
func TestListenTakesThePathOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plugin.socket")
	first, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = first.Close()
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	_ = second.Close()
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket stays: %v", err)
	}
	if _, err := Listen(filepath.Join(path, "no-folder")); err == nil {
		t.Error("listens nowhere")
	}
}

// counted counts the system calls of a connection, but for the reads that find
// nothing and wait.
type counted struct {
	net.Conn
	reads, writes int
}

func (c *counted) Read(p []byte) (int, error)  { c.reads++; return c.Conn.Read(p) }
func (c *counted) Write(p []byte) (int, error) { c.writes++; return c.Conn.Write(p) }

func TestReadsAndWrites(t *testing.T) {
	for _, c := range []struct {
		access        func(*Event)
		calls         int
		reads, writes int
	}{
		{func(*Event) {}, 0, 1, 1},
		{func(e *Event) { e.SetHeaders("kong.response.set_headers", []Header{{Name: "A", Value: "1"}}) }, 1, 2, 1},
		{func(e *Event) {
			_ = e.Ask([]Question{{Method: "kong.client.get_consumer"}, {Method: "kong.client.get_forwarded_ip"}})
			e.SetHeaders("kong.response.set_headers", []Header{{Name: "A", Value: "1"}})
		}, 3, 3, 2},
	} {
		ours, theirs := net.Pipe()
		s := New(nil, slog.New(slog.DiscardHandler))
		s.instances[7] = running{Instance: &handler{access: c.access}}
		served := &counted{Conn: ours}
		var wg sync.WaitGroup
		wg.Go(func() { (&conn{server: s, wire: newWire(served)}).serve() })
		k := &kong{t, theirs, bufio.NewReader(theirs)}
		const events = 10
		for range events {
			k.event(7, "access")
			var replies []byte
			for range c.calls {
				if _, err := k.read(); err != nil { // method and argument
					t.Fatal(err)
				}
				if _, err := k.read(); err != nil {
					t.Fatal(err)
				}
				if replies = append(replies, 0, 0, 0, 0); k.in.Buffered() == 0 {
					_, _ = theirs.Write(replies)
					replies = nil
				}
			}
			k.expect("")
			k.returned()
			if len(replies) > 0 {
				_, _ = theirs.Write(replies)
			}
		}
		_ = theirs.Close()
		wg.Wait()
		if served.reads != events*c.reads+1 || served.writes != events*c.writes {
			t.Errorf("%d calls: %d reads and %d writes for %d events, want %d and %d each", c.calls, served.reads-1, served.writes, events, c.reads, c.writes)
		}
	}
}

// What is written by hand is what go-pdk's messages are.
func FuzzMessages(f *testing.F) {
	f.Add("X-RateLimit-Limit-Day", "100", "X-B", "b", 429, []byte("body"))
	f.Add("", "", "ü", strings.Repeat("long", 100), -1, []byte(nil))
	f.Fuzz(func(t *testing.T, name, value, other, another string, status int, body []byte) {
		for _, text := range []*string{&name, &value, &other, &another} {
			*text = strings.ToValidUTF8(*text, "?")
		}
		if name == other {
			other += "x"
		}
		want, err := bridge.WrapHeaders(map[string][]string{name: {value}, other: {}})
		if err != nil {
			t.Fatal(err)
		}
		want.Fields[name] = structpb.NewStringValue(value)
		got := new(structpb.Struct)
		if err := proto.Unmarshal(appendHeaders(nil, []Header{{Name: name, Value: value}, {Name: other, Remove: true}}), got); err != nil || !proto.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}

		e := Event{wire: newWire(nil)}
		e.Exit(status, body, []Header{{Name: name, Value: value}})
		frames := e.wire.out
		skip := 4 + binary.LittleEndian.Uint32(frames)
		args := new(pb.ExitArgs)
		if err := proto.Unmarshal(frames[skip+4:], args); err != nil || args.Status != int32(status) || string(args.Body) != string(body) || args.Headers.Fields[name].GetStringValue() != value {
			t.Errorf("%v, %v", args, err)
		}

		service, err := proto.Marshal(&pb.Service{Id: name, Retries: 5, Protocol: value, Host: other})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := text(service, 6); err != nil || got != value {
			t.Errorf("protocol %q, %v", got, err)
		}
		for _, m := range []proto.Message{
			&pb.String{V: value}, &pb.Consumer{Id: value, Username: other, CustomId: name, CreatedAt: int64(status), Tags: []string{another}},
			&pb.Service{Id: value, Port: int32(status), Tags: []string{name}}, &pb.Route{StripPath: true, Id: value, Service: &pb.ServiceKey{Id: other}},
		} {
			message, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := text(message, 1); err != nil || got != value {
				t.Errorf("%v: %q, %v", m, got, err)
			}
		}
	})
}

// What go-pdk's messages say of a call, handleEvent says too, or leaves it to them.
func FuzzHandleEvent(f *testing.F) {
	for _, call := range []*pb.RpcCall{
		{Sequence: 42, Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: 7, EventName: "access"}}},
		{Sequence: -1, Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: -7, EventName: "log"}}},
		{Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{}}},
		closeCall(7), startCall("{}"), {},
	} {
		text, err := proto.Marshal(call)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		sequence, instance, event, ok := handleEvent(frame)
		if !ok {
			return
		}
		m := new(pb.RpcCall)
		if err := proto.Unmarshal(frame, m); err != nil {
			if strings.Contains(err.Error(), "UTF-8") { // as a phase that does not exist
				return
			}
			t.Fatal(err)
		}
		want := m.GetCmdHandleEvent()
		if want == nil || fmt.Sprint(m.Sequence, want.InstanceId, want.EventName) != fmt.Sprint(sequence, instance, event) {
			t.Errorf("%d %d %q, want %v", sequence, instance, event, m)
		}
	})
}
