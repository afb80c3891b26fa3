package devkong

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
)

// dump is what a query command prints: who the plugin is.
type dump struct {
	name     string
	socket   string
	priority int
	schema   []byte
}

func readDump(text []byte) (*dump, error) {
	var d struct {
		Protocol   string
		SocketPath string
		Plugins    []struct {
			Name     string
			Phases   []string
			Version  string
			Priority int
			Schema   json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("the query command did not print a dump: %w", err)
	}
	if d.Protocol != "ProtoBuf:1" || len(d.Plugins) != 1 {
		return nil, fmt.Errorf("the dump has protocol %q and %d plugins; devkong speaks ProtoBuf:1 with one", d.Protocol, len(d.Plugins))
	}
	p := d.Plugins[0]
	if len(p.Phases) != 1 || p.Phases[0] != "access" {
		return nil, fmt.Errorf("the dump has the phases %v; devkong runs access alone", p.Phases)
	}
	return &dump{p.Name, d.SocketPath, p.Priority, p.Schema}, nil
}

// pluginServer is Kong's side of one plugin server: instances, events, and the
// PDK calls inside of them.
type pluginServer struct {
	name    string
	socket  string
	schemas schemas
	log     *slog.Logger

	messages atomic.Int64 // Kong's sequence, counted by worker

	mu        sync.Mutex
	idle      []*connection
	instances map[string]*instance // by the plugin's id
}

type instance struct {
	mu  sync.Mutex // held while it starts
	id  int32
	seq int
	ok  bool
}

// Kong waits this long for a plugin server.
const eventTimeout = 60 * time.Second

var (
	// errClosed: the plugin server closed the connection, or was not there.
	errClosed = errors.New("closed")
	// errExited: the handler ended the request; Kong closes the connection
	// instead of replying.
	errExited = errors.New("the plugin ended the request")
)

// event runs the access phase of one request in the instance of the plugin. On a
// closed connection all instances of the plugin are dropped, started again, and
// the event runs again, as in Kong.
func (s *pluginServer) event(ctx context.Context, p *plugin, pdk pdkHandler) error {
	const tries = 5 // Kong has no bound
	var err error
	for range tries {
		var id int32
		if id, err = s.instance(ctx, p); err != nil {
			return fmt.Errorf("starting instance: %w", err)
		}
		_, err = s.call(ctx, &pb.RpcCall{Call: &pb.RpcCall_CmdHandleEvent{
			CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: id, EventName: "access"},
		}}, pdk)
		if !errors.Is(err, errClosed) {
			return err
		}
		s.log.Warn("the plugin server closed the connection; its instances start again", "plugin", s.name, "error", err)
		s.reset()
	}
	return err
}

// instance gives the id of the plugin's instance, and starts it if this version
// of the plugin has none. The instance of the version before is closed.
func (s *pluginServer) instance(ctx context.Context, p *plugin) (int32, error) {
	s.mu.Lock()
	i := s.instances[p.ID]
	if i == nil {
		i = &instance{}
		s.instances[p.ID] = i
	}
	s.mu.Unlock()

	i.mu.Lock()
	defer i.mu.Unlock()
	if i.ok && i.seq == p.seq {
		return i.id, nil
	}
	config, err := s.schemas.instanceConfig(p)
	if err != nil {
		return 0, err
	}
	reply, err := s.call(ctx, &pb.RpcCall{Call: &pb.RpcCall_CmdStartInstance{
		CmdStartInstance: &pb.CmdStartInstance{Name: s.name, Config: config},
	}}, nil)
	if err != nil {
		return 0, err
	}
	before, had := i.id, i.ok
	i.id, i.seq, i.ok = reply.GetInstanceStatus().GetInstanceId(), p.seq, true
	if had {
		if _, err := s.call(ctx, &pb.RpcCall{Call: &pb.RpcCall_CmdCloseInstance{
			CmdCloseInstance: &pb.CmdCloseInstance{InstanceId: before},
		}}, nil); err != nil {
			s.log.Debug("closing an instance", "instance", before, "error", err)
		}
	}
	return i.id, nil
}

// reset forgets all instances and connections.
func (s *pluginServer) reset() {
	s.mu.Lock()
	idle := s.idle
	s.idle, s.instances = nil, map[string]*instance{}
	s.mu.Unlock()
	for _, c := range idle {
		_ = c.Close()
	}
}

func (s *pluginServer) take() (*connection, error) {
	s.mu.Lock()
	if n := len(s.idle); n > 0 {
		c := s.idle[n-1]
		s.idle = s.idle[:n-1]
		s.mu.Unlock()
		return c, nil
	}
	s.mu.Unlock()
	return dial(s.socket)
}

// pdkHandler answers one PDK call with the payload of a reply, or errExited.
type pdkHandler func(method string, args []byte) ([]byte, error)

// call sends one message and reads its return; in between it answers the PDK
// calls, if pdk is not nil, one after the other until the empty frame.
func (s *pluginServer) call(ctx context.Context, message *pb.RpcCall, pdk pdkHandler) (*pb.RpcReturn, error) {
	c, err := s.take()
	if err != nil {
		return nil, fmt.Errorf("trying to connect: %w", err)
	}
	reply, err := s.exchange(ctx, c, message, pdk)
	if err != nil {
		reused := c.used
		_ = c.Close()
		// A connection that the other side closed while it was idle is not in
		// Kong's pool any more when it is wanted; here it is found out now.
		if reused && pdk == nil && errors.Is(err, errClosed) {
			s.reset()
			return s.call(ctx, message, pdk)
		}
		return nil, err
	}
	c.used = true
	s.mu.Lock()
	s.idle = append(s.idle, c)
	s.mu.Unlock()
	return reply, nil
}

func (s *pluginServer) exchange(ctx context.Context, c *connection, message *pb.RpcCall, pdk pdkHandler) (*pb.RpcReturn, error) {
	if err := c.SetDeadline(time.Now().Add(eventTimeout)); err != nil {
		return nil, closed(err)
	}
	message.Sequence = s.messages.Add(1)
	text, err := proto.Marshal(message)
	if err != nil {
		return nil, err
	}
	if err := c.write(text); err != nil {
		return nil, closed(err)
	}
	if err := c.out.Flush(); err != nil {
		return nil, closed(err)
	}
	for pdk != nil {
		method, err := c.read()
		if err != nil {
			return nil, closed(err)
		}
		if len(method) == 0 {
			break
		}
		args, err := c.read()
		if err != nil {
			return nil, closed(err)
		}
		answer, err := pdk(string(method), args)
		if err != nil {
			return nil, err
		}
		if err := c.write(answer); err != nil {
			return nil, closed(err)
		}
		if err := c.out.Flush(); err != nil {
			return nil, closed(err)
		}
	}
	frame, err := c.read()
	if err != nil {
		return nil, closed(err)
	}
	reply := new(pb.RpcReturn)
	if err := proto.Unmarshal(frame, reply); err != nil {
		return nil, fmt.Errorf("the plugin server's return: %w", err)
	}
	if reply.Sequence != message.Sequence {
		return nil, fmt.Errorf("the plugin server answered message %d for %d", reply.Sequence, message.Sequence)
	}
	return reply, nil
}

// closed tells the end of a connection from what else can go wrong with it.
func closed(err error) error {
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("timeout: %w", err)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) ||
		errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return fmt.Errorf("%w: %w", errClosed, err)
	}
	return err
}
