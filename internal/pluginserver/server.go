// Package pluginserver is the plugin's side of Kong's protocol ProtoBuf:1, for
// plugins with an access handler. It differs from go-pdk's server in what it costs
// and in how it fails: frames are buffered, and what can go together goes in one
// write; a panic ends its request only; a stop lets requests finish. Messages are
// those of go-pdk.
package pluginserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Instance is one configuration of the plugin.
type Instance interface {
	// Access handles one request. When it returns the request goes on to the
	// upstream, unless Event.Exit was called.
	Access(*Event)
	// Close is called when Kong does not use the instance any more. Requests may
	// still be in Access.
	Close()
}

// Server serves one plugin to Kong.
type Server struct {
	start func(config []byte) (Instance, error)
	log   *slog.Logger

	mu        sync.RWMutex
	instances map[int32]running
	conns     map[*conn]struct{}
	stopping  atomic.Bool
	idle      sync.Cond // signalled when a connection goes
	ctx       context.Context
	cancel    context.CancelFunc
}

type running struct {
	Instance
	started int64 // seconds since the Unix epoch
}

// New makes a server; start makes an instance of the JSON that Kong sends.
func New(start func(config []byte) (Instance, error), log *slog.Logger) *Server {
	s := &Server{start: start, log: log, instances: map[int32]running{}, conns: map[*conn]struct{}{}}
	s.idle.L = &s.mu
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// Listen takes over a socket path. A socket that is there is that of a server
// which has died, or which Kong is about to replace: after a reload both serve for
// a while, the old one what it has accepted.
func Listen(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("socket %s: %w", path, err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	own, err := os.Stat(path)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket: %w", err), listener.Close())
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false)
	return &socket{listener, path, own}, nil
}

// socket removes its path when it closes, if the path is still its own.
type socket struct {
	net.Listener
	path string
	own  fs.FileInfo
}

func (s *socket) Close() error {
	if now, err := os.Stat(s.path); err == nil && os.SameFile(now, s.own) {
		_ = os.Remove(s.path)
	}
	return s.Listener.Close()
}

// Serve accepts connections until the listener closes or the server stops.
func (s *Server) Serve(listener net.Listener) error {
	for {
		accepted, err := listener.Accept()
		if err != nil {
			if s.stopping.Load() || errors.Is(err, net.ErrClosed) {
				return nil
			}
			var temporary interface{ Temporary() bool }
			if errors.As(err, &temporary) && temporary.Temporary() { // out of file descriptors
				s.log.Warn("accepting a connection of Kong", "error", err)
				time.Sleep(10 * time.Millisecond)
				continue
			}
			return fmt.Errorf("accepting connections of Kong: %w", err)
		}
		c := &conn{server: s, wire: newWire(accepted)}
		s.mu.Lock()
		if s.stopping.Load() {
			s.mu.Unlock()
			_ = accepted.Close()
			continue
		}
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		go c.serve()
	}
}

// Stop closes the connections on which nothing happens, waits for the requests on
// the others, and closes every instance. When the context ends it waits no more,
// and its error is returned. The listener is the caller's to close, before.
func (s *Server) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping.Store(true)
	for c := range s.conns {
		if c.state.CompareAndSwap(idle, closed) {
			_ = c.wire.conn.Close()
		}
	}
	s.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		s.cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		for c := range s.conns {
			_ = c.wire.conn.Close()
		}
		s.idle.Broadcast()
	})()
	s.mu.Lock()
	for len(s.conns) > 0 && ctx.Err() == nil {
		s.idle.Wait()
	}
	left := s.instances
	s.instances = map[int32]running{}
	s.mu.Unlock()
	for _, instance := range left {
		instance.Close()
	}
	return ctx.Err()
}

// conn is a connection of Kong, which uses it for one call after the other.
type conn struct {
	server *Server
	wire   *wire
	state  atomic.Int32
}

// What a connection is in: only an idle one may be closed by Stop.
const (
	idle int32 = iota
	busy
	closed
)

func (c *conn) serve() {
	s := c.server
	err := c.calls()
	_ = c.wire.conn.Close()
	s.mu.Lock()
	delete(s.conns, c)
	s.idle.Broadcast()
	s.mu.Unlock()
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, net.ErrClosed) {
		s.log.Debug("connection of Kong", "error", err)
	}
}

// calls serves one call after the other. A returned error ends the connection, by
// which Kong learns that a call failed.
func (c *conn) calls() error {
	for {
		frame, err := c.wire.read()
		if err != nil {
			return err
		}
		if !c.begin() {
			return net.ErrClosed
		}
		if sequence, instance, event, ok := handleEvent(frame); ok {
			err = c.event(sequence, instance, event)
		} else {
			err = c.call(frame)
		}
		if !c.end() {
			return errors.Join(err, net.ErrClosed)
		}
		if err != nil {
			return err
		}
	}
}

// begin and end tell Stop when the connection must be left alone; false means
// that the server stops.
func (c *conn) begin() bool { return c.state.CompareAndSwap(idle, busy) }

func (c *conn) end() bool {
	c.state.Store(idle)
	return !c.server.stopping.Load()
}

// handleEvent reads a call of cmd_handle_event, the one that every request makes;
// false for any other.
func handleEvent(frame []byte) (sequence int64, instance int32, event string, ok bool) {
	for len(frame) > 0 {
		field, kind, n := protowire.ConsumeTag(frame)
		if n < 0 {
			return 0, 0, "", false
		}
		frame = frame[n:]
		switch {
		case field == 1 && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(frame)
			if n < 0 {
				return 0, 0, "", false
			}
			sequence, frame = int64(v), frame[n:]
		case field == 36 && kind == protowire.BytesType && !ok:
			inner, n := protowire.ConsumeBytes(frame)
			if n < 0 {
				return 0, 0, "", false
			}
			frame, ok = frame[n:], true
			if instance, event, ok = eventOf(inner); !ok {
				return 0, 0, "", false
			}
		default:
			return 0, 0, "", false
		}
	}
	return sequence, instance, event, ok
}

func eventOf(message []byte) (instance int32, event string, ok bool) {
	for len(message) > 0 {
		field, kind, n := protowire.ConsumeTag(message)
		if n < 0 {
			return 0, "", false
		}
		message = message[n:]
		switch {
		case field == 1 && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(message)
			if n < 0 {
				return 0, "", false
			}
			instance, message = int32(v), message[n:]
		case field == 2 && kind == protowire.BytesType:
			v, n := protowire.ConsumeBytes(message)
			if n < 0 {
				return 0, "", false
			}
			event, message = phase(v), message[n:]
		default:
			return 0, "", false
		}
	}
	return instance, event, true
}

const access = "access"

// phase saves the copy of the name that every event has.
func phase(name []byte) string {
	if string(name) == access {
		return access
	}
	return string(name)
}

// event runs a request's handler. What it has told Kong last leaves in one write
// with the end of its calls and the return; an event of one instance that knows
// its consumer is two reads and one write.
func (c *conn) event(sequence int64, id int32, phase string) error {
	c.server.mu.RLock()
	instance, found := c.server.instances[id]
	c.server.mu.RUnlock()
	if !found { // Kong starts it when the connection closes, and runs the event again
		return fmt.Errorf("no plugin instance %d", id)
	}
	if phase != access {
		return fmt.Errorf("instance %d handles no %q", id, phase)
	}
	e := Event{wire: c.wire, ctx: c.server.ctx}
	if err := c.run(instance, &e); err != nil {
		return err
	}
	if e.gone { // Kong closes the connection when it has ended the request
		if err := e.settle(); err != nil {
			return err
		}
		_, _ = c.wire.read()
		return io.EOF
	}
	c.wire.end(c.wire.frame()) // no more calls
	start := c.wire.frame()
	if sequence != 0 {
		c.wire.out = protowire.AppendTag(c.wire.out, 1, protowire.VarintType)
		c.wire.out = protowire.AppendVarint(c.wire.out, uint64(sequence))
	}
	c.wire.end(start)
	return e.settle()
}

// run keeps a panic from everything but its request.
func (c *conn) run(instance Instance, e *Event) (err error) {
	defer func() {
		if caught := recover(); caught != nil {
			c.server.log.Error("access handler panicked", "panic", caught, "stack", string(debug.Stack()))
			err = fmt.Errorf("access handler panicked: %v", caught)
		}
	}()
	instance.Access(e)
	return nil
}

// call serves what is no event: the life of instances.
func (c *conn) call(frame []byte) error {
	m := new(pb.RpcCall)
	if err := proto.Unmarshal(frame, m); err != nil {
		return fmt.Errorf("call of Kong: %w", err)
	}
	var status *pb.InstanceStatus
	var err error
	switch call := m.Call.(type) {
	case *pb.RpcCall_CmdStartInstance:
		status, err = c.server.startInstance(call.CmdStartInstance)
	case *pb.RpcCall_CmdGetInstanceStatus:
		status, err = c.server.status(call.CmdGetInstanceStatus.InstanceId)
	case *pb.RpcCall_CmdCloseInstance:
		status, err = c.server.closeInstance(call.CmdCloseInstance.InstanceId)
	case *pb.RpcCall_CmdHandleEvent:
		return c.event(m.Sequence, call.CmdHandleEvent.InstanceId, call.CmdHandleEvent.EventName)
	default:
		err = fmt.Errorf("call of Kong: unexpected %T", call)
	}
	if err != nil {
		return err
	}
	start := c.wire.frame()
	c.wire.out, err = proto.MarshalOptions{}.MarshalAppend(c.wire.out, &pb.RpcReturn{
		Sequence: m.Sequence, Return: &pb.RpcReturn_InstanceStatus{InstanceStatus: status},
	})
	if err != nil {
		return fmt.Errorf("return to Kong: %w", err)
	}
	c.wire.end(start)
	return c.wire.flush()
}

func (s *Server) startInstance(call *pb.CmdStartInstance) (*pb.InstanceStatus, error) {
	var own struct {
		Seq int32 `json:"__seq__"` // by which Kong will call it
	}
	if err := json.Unmarshal(call.Config, &own); err != nil {
		return nil, fmt.Errorf("starting an instance: config: %w", err)
	}
	started, err := s.startSafely(call.Config)
	if err != nil {
		return nil, fmt.Errorf("starting an instance: %w", err)
	}
	id := own.Seq
	instance := running{started, time.Now().Unix()}
	s.mu.Lock()
	if id == 0 {
		for taken := true; taken; _, taken = s.instances[id] {
			id = 1 + rand.Int32N(1<<31-1)
		}
	}
	before, replaced := s.instances[id]
	s.instances[id] = instance
	s.mu.Unlock()
	if replaced { // every worker of Kong starts its own
		before.Close()
	}
	return &pb.InstanceStatus{Name: call.Name, InstanceId: id, StartedAt: instance.started}, nil
}

func (s *Server) startSafely(config []byte) (instance Instance, err error) {
	defer func() {
		if caught := recover(); caught != nil {
			s.log.Error("starting an instance panicked", "panic", caught, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", caught)
		}
	}()
	return s.start(config)
}

func (s *Server) status(id int32) (*pb.InstanceStatus, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	instance, found := s.instances[id]
	if !found {
		return nil, fmt.Errorf("no plugin instance %d", id)
	}
	return &pb.InstanceStatus{Name: "---", InstanceId: id, StartedAt: instance.started}, nil
}

func (s *Server) closeInstance(id int32) (*pb.InstanceStatus, error) {
	s.mu.Lock()
	instance, found := s.instances[id]
	delete(s.instances, id)
	s.mu.Unlock()
	if !found {
		return nil, fmt.Errorf("no plugin instance %d", id)
	}
	instance.Close()
	return &pb.InstanceStatus{Name: "---", InstanceId: id, StartedAt: instance.started}, nil
}
