package devkong

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

const transcripts = "../../../shared/kong-transcripts"

// frame is a recorded frame, or one that passed the tap.
type frame struct {
	Conn int    `json:"conn"`
	Dir  string `json:"dir"`
	Kind string `json:"kind"`
	Hex  string `json:"hex"`
}

const (
	toPlugin = "kong->plugin"
	toKong   = "plugin->kong"
)

// tap passes on what a devkong and a plugin server say and writes it down.
type tap struct {
	server string // the plugin server's socket

	mu     sync.Mutex
	conns  int
	frames []frame
}

func (p *tap) listen(t *testing.T, socket string) {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			kong, err := listener.Accept()
			if err != nil {
				return
			}
			plugin, err := net.Dial("unix", p.server)
			if err != nil {
				_ = kong.Close()
				continue
			}
			p.mu.Lock()
			p.conns++
			c := &tapped{tap: p, conn: p.conns}
			p.mu.Unlock()
			go c.pass(kong, plugin, toPlugin)
			go c.pass(plugin, kong, toKong)
		}
	}()
}

func (p *tap) take() []frame {
	p.mu.Lock()
	defer p.mu.Unlock()
	frames := p.frames
	p.frames = nil
	return frames
}

// tapped is one connection. What kind a frame is follows from the turn.
type tapped struct {
	tap    *tap
	conn   int
	event  bool // an event's PDK calls are going on
	args   bool // the next frame to Kong has arguments
	ended  bool // one side has closed
	answer bool // the next frame to the plugin is a reply
}

func (c *tapped) pass(from, to net.Conn, dir string) {
	in := bufio.NewReader(from)
	for {
		var size [4]byte
		_, err := io.ReadFull(in, size[:])
		payload := make([]byte, binary.LittleEndian.Uint32(size[:]))
		if err == nil {
			_, err = io.ReadFull(in, payload)
		}
		if err != nil {
			c.note(frame{c.conn, dir, "eof", ""})
			_, _ = from.Close(), to.Close()
			return
		}
		c.note(frame{c.conn, dir, "", hex.EncodeToString(payload)})
		if _, err := to.Write(append(size[:], payload...)); err != nil {
			return
		}
	}
}

func (c *tapped) note(f frame) {
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	switch {
	case f.Kind == "eof" && c.ended:
		return
	case f.Kind == "eof":
		c.ended = true
	case f.Dir == toPlugin && c.answer:
		f.Kind, c.answer = "pdk-reply", false
	case f.Dir == toPlugin:
		f.Kind = "rpc-call"
		call := new(pb.RpcCall)
		payload, _ := hex.DecodeString(f.Hex)
		_ = proto.Unmarshal(payload, call)
		c.event = call.GetCmdHandleEvent() != nil
	case c.event && c.args:
		f.Kind, c.args, c.answer = "pdk-args", false, true
	case c.event && f.Hex == "":
		f.Kind, c.event = "end-of-calls", false
	case c.event:
		f.Kind, c.args = "pdk-method", true
	default:
		f.Kind = "rpc-return"
	}
	c.tap.frames = append(c.tap.frames, f)
}

// payloads are the messages of the PDK calls: arguments and reply.
var payloads = map[string][2]proto.Message{
	"kong.client.get_consumer":        {nil, &pb.Consumer{}},
	"kong.client.get_credential":      {nil, &pb.AuthenticatedCredential{}},
	"kong.client.get_forwarded_ip":    {nil, &pb.String{}},
	"kong.client.get_ip":              {nil, &pb.String{}},
	"kong.request.get_header":         {&pb.String{}, &pb.String{}},
	"kong.request.get_method":         {nil, &pb.String{}},
	"kong.request.get_path":           {nil, &pb.String{}},
	"kong.nginx.get_var":              {&pb.String{}, &pb.String{}},
	"kong.router.get_route":           {nil, &pb.Route{}},
	"kong.router.get_service":         {nil, &pb.Service{}},
	"kong.response.set_headers":       {&structpb.Struct{}, nil},
	"kong.service.request.set_header": {&pb.KV{}, nil},
	"kong.ctx.shared.set":             {&pb.KV{}, nil},
	"kong.log.notice":                 {&structpb.ListValue{}, nil},
	"kong.response.exit":              {&pb.ExitArgs{}, nil},
}

var (
	uuids = regexp.MustCompile(`[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	times = regexp.MustCompile(`"\d{10}"`)
	ports = regexp.MustCompile(`"port":\d+`)
)

// describe writes frames as text that two conversations can be compared by: ids,
// times, the upstream's port and message numbers are left out, and instances and
// connections are numbered in the order in which they come.
func describe(t *testing.T, frames []frame) []string {
	t.Helper()
	method := ""
	instances, conns := map[int32]int{}, map[int]int{}
	number := func(id int32) int {
		if _, seen := instances[id]; !seen {
			instances[id] = len(instances) + 1
		}
		return instances[id]
	}
	var lines []string
	for _, f := range frames {
		payload, err := hex.DecodeString(f.Hex)
		if err != nil {
			t.Fatal(err)
		}
		if _, seen := conns[f.Conn]; !seen {
			conns[f.Conn] = len(conns) + 1
		}
		content := ""
		switch f.Kind {
		case "rpc-call":
			call := new(pb.RpcCall)
			decode(t, payload, call)
			switch c := call.Call.(type) {
			case *pb.RpcCall_CmdStartInstance:
				content = fmt.Sprintf("start %s %s", c.CmdStartInstance.Name, config(t, c.CmdStartInstance.Config))
			case *pb.RpcCall_CmdCloseInstance:
				content = fmt.Sprintf("close %d", number(c.CmdCloseInstance.InstanceId))
			case *pb.RpcCall_CmdHandleEvent:
				content = fmt.Sprintf("event %s of %d", c.CmdHandleEvent.EventName, number(c.CmdHandleEvent.InstanceId))
			}
		case "rpc-return":
			reply := new(pb.RpcReturn)
			decode(t, payload, reply)
			if status := reply.GetInstanceStatus(); status != nil {
				content = fmt.Sprintf("%s %d", status.Name, number(status.InstanceId))
			}
		case "pdk-method":
			method = string(payload)
			content = method
		case "pdk-args":
			content = message(t, payload, payloads[method][0])
		case "pdk-reply":
			content = message(t, payload, payloads[method][1])
		}
		lines = append(lines, fmt.Sprintf("%d %s %s %s", conns[f.Conn], f.Dir, f.Kind, content))
	}
	return lines
}

func decode(t *testing.T, payload []byte, into proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(payload, into); err != nil {
		t.Fatal(err)
	}
}

func message(t *testing.T, payload []byte, kind proto.Message) string {
	t.Helper()
	if kind == nil {
		if len(payload) > 0 {
			t.Fatalf("%x where nothing was recorded", payload)
		}
		return ""
	}
	m := proto.Clone(kind)
	decode(t, payload, m)
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var compact bytes.Buffer // protojson varies its spaces on purpose
	if err := json.Compact(&compact, text); err != nil {
		t.Fatal(err)
	}
	plain := uuids.ReplaceAllString(compact.String(), "ID")
	plain = times.ReplaceAllString(plain, `"TIME"`)
	return ports.ReplaceAllString(plain, `"port":PORT`)
}

// config writes an instance's configuration with sorted names.
func config(t *testing.T, text []byte) string {
	t.Helper()
	var tree map[string]any
	if err := json.Unmarshal(text, &tree); err != nil {
		t.Fatal(err)
	}
	if _, isNumber := tree["__seq__"].(float64); !isNumber {
		t.Errorf("__seq__ is %v", tree["__seq__"])
	}
	tree["__seq__"] = "SEQ"
	sorted, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return uuids.ReplaceAllString(string(sorted), "ID")
}

// scenario is what the recordings' client did.
type scenario struct {
	file     string
	method   string
	paths    []string
	headers  map[string]string
	before   string // what happens to Kong or the plugin server first
	status   int
	expected map[string][]string
	body     string
}

var passed = map[string][]string{"X-A": {"1"}, "X-B": {"2", "3"}, "Content-Type": {"text/plain; charset=UTF-8"}}

var exited = map[string][]string{"X-A": {"1"}, "X-B": {"2", "3"}, "Content-Type": {"application/problem+json"}, "Retry-After": {"7"}, "Content-Length": {"12"}, "Grpc-Status": nil}

var scenarios = []scenario{
	{"01-bob-service-scope", "GET", []string{"/sms"}, map[string]string{"apikey": "bob-key"}, "", 200, passed, "ok\n"},
	{"02-alice-consumer-service-scope", "GET", []string{"/sms"}, map[string]string{"apikey": "alice-key", "x-plan": "gold", "Cookie": "sid=abc"}, "", 200, passed, "ok\n"},
	{"03-alice-consumer-route-scope", "GET", []string{"/bulk/1?x=2"}, map[string]string{"apikey": "alice-key"}, "", 200, passed, "ok\n"},
	{"04-anonymous", "GET", []string{"/open/a"}, nil, "", 200, passed, "ok\n"},
	{"05-exit-429", "GET", []string{"/open/a"}, map[string]string{"x-over": "1"}, "", 429, exited, `{"limits":2}`},
	{"06-exit-429-grpc", "POST", []string{"/open/a"}, map[string]string{"x-over": "1", "Content-Type": "application/grpc"}, "", 429, exited, `{"limits":2}`},
	{"07-keepalive-two-requests", "GET", []string{"/open/a", "/open/b"}, nil, "", 200, passed, "ok\n"},
	{"", "GET", []string{"/sms"}, nil, "", 401, map[string][]string{"Www-Authenticate": {"Key"}, "Content-Type": {"application/json; charset=utf-8"}}, ""},
	{"09-config-reload-then-alice", "GET", []string{"/sms"}, map[string]string{"apikey": "alice-key"}, "reload", 200, passed, "ok\n"},
	{"10-plugin-server-restarted", "GET", []string{"/sms"}, map[string]string{"apikey": "alice-key"}, "restart", 200, passed, "ok\n"},
}

// TestTranscripts holds devkong to the frames that a real Kong 3.9.3 exchanged
// with the same plugin, and to what its client saw.
func TestTranscripts(t *testing.T) {
	kongYML, err := os.ReadFile(filepath.Join(transcripts, "kong.yml"))
	if err != nil {
		t.Skipf("the recordings of real Kong are not here: %v", err)
	}
	folder := t.TempDir()
	binary := filepath.Join(folder, "quota") // the plugin's name is the executable's
	if out, err := exec.Command("go", "build", "-o", binary, "./testdata/recorder").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	behind := filepath.Join(folder, "behind")
	if err := os.Mkdir(behind, 0o755); err != nil {
		t.Fatal(err)
	}
	server := &recorder{binary: binary, prefix: behind}
	server.start(t)
	wire := &tap{server: filepath.Join(behind, "quota.socket")}
	socket := filepath.Join(folder, "quota.socket")
	wire.listen(t, socket)

	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-Up") != "u" {
			t.Errorf("the upstream got X-Up %q", r.Header.Get("X-Up"))
		}
		w.Header().Set("Content-Type", "text/plain; charset=UTF-8")
		_, _ = w.Write([]byte("ok\n"))
	}))
	defer upstream.Close()
	g, err := Start(context.Background(), Options{
		Config: kongYML, Plugin: binary, Prefix: folder, Socket: socket, External: true,
		Resolve: map[string]string{"127.0.0.1:9999": upstream.Listener.Addr().String()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()

	// Bob's instance was running when the first recording began.
	send(t, g, scenarios[0], "/sms")
	wire.take()
	for _, s := range scenarios {
		t.Run(s.file, func(t *testing.T) {
			switch s.before {
			case "reload":
				reload(t, g, strings.Replace(string(kongYML), "limit: 500", "limit: 600", 1))
			case "restart":
				server.stop(t)
				server.start(t)
			}
			for _, path := range s.paths {
				send(t, g, s, path)
			}
			if s.file == "" {
				if frames := wire.take(); len(frames) > 0 {
					t.Errorf("the plugin was asked: %v", describe(t, frames))
				}
				return
			}
			got, want := describe(t, wire.await(t, s)), describe(t, recorded(t, s.file))
			if s.before == "restart" {
				// The recording caught the old connection in the middle of an
				// event. Here it was seen to be closed; what follows is the same.
				got, want = afterStart(got), afterStart(want)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		})
	}
}

// await takes the frames of a scenario; the last of an exit is the end of the
// connection, which comes after the client has its answer.
func (p *tap) await(t *testing.T, s scenario) []frame {
	t.Helper()
	var frames []frame
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		frames = append(frames, p.take()...)
		if n := len(frames); n > 0 && (s.status == 200 && frames[n-1].Kind == "rpc-return" || frames[n-1].Kind == "eof" && s.status != 200) {
			return frames
		}
	}
	t.Fatalf("the conversation did not end: %v", describe(t, frames))
	return nil
}

func afterStart(lines []string) []string {
	for i, line := range lines {
		if strings.Contains(line, " start quota") {
			rest := make([]string, 0, len(lines))
			for _, l := range lines[i:] {
				_, l, _ = strings.Cut(l, " ")
				rest = append(rest, l)
			}
			return rest
		}
	}
	return nil
}

func recorded(t *testing.T, file string) []frame {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(transcripts, file+".jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var frames []frame
	for _, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		var f frame
		if err := json.Unmarshal(line, &f); err != nil {
			t.Fatal(err)
		}
		frames = append(frames, f)
	}
	return frames
}

func send(t *testing.T, g *Gateway, s scenario, path string) {
	t.Helper()
	request, err := http.NewRequest(s.method, g.ProxyURL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range s.headers {
		request.Header.Set(name, value)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != s.status || s.body != "" && string(body) != s.body {
		t.Errorf("status %d, body %q; want %d, %q", response.StatusCode, body, s.status, s.body)
	}
	for name, values := range s.expected {
		if got := response.Header[name]; !reflect.DeepEqual(got, values) {
			t.Errorf("%s: %q, want %q", name, got, values)
		}
	}
	if s.status == 401 && !regexp.MustCompile(`^\{\n  "message":"No API key found in request",\n  "request_id":"[0-9a-f]{32}"\n\}$`).Match(body) {
		t.Errorf("body %q", body)
	}
}

func reload(t *testing.T, g *Gateway, config string) {
	t.Helper()
	text, err := json.Marshal(map[string]string{"config": config})
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(g.AdminURL()+"/config", "application/json", bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusCreated {
		body, _ := io.ReadAll(response.Body)
		t.Fatalf("status %d: %s", response.StatusCode, body)
	}
}

// recorder runs the recorded plugin.
type recorder struct {
	binary, prefix string
	cmd            *exec.Cmd
}

func (r *recorder) start(t *testing.T) {
	t.Helper()
	r.cmd = exec.Command(r.binary, "-kong-prefix", r.prefix)
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	cmd := r.cmd
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := await(ctx, filepath.Join(r.prefix, "quota.socket")); err != nil {
		t.Fatal(err)
	}
}

func (r *recorder) stop(t *testing.T) {
	t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.cmd.Wait()
	// The dead server's socket must not answer for the next one.
	_ = os.Remove(filepath.Join(r.prefix, "quota.socket"))
}
