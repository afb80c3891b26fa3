// Package transport measures events a second over Kong's plugin protocol: go-pdk's
// server beside ours, with a load generator that speaks Kong's side from memory.
package transport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"

	"kong-quota/bench/load"
	"kong-quota/bench/report"
)

const (
	connections = 32
	duration    = 2 * time.Second
)

var (
	servers = []string{"go-pdk", "kong-quota"}
	calls   = []int{0, 1, 3}
)

type outcome struct{ rate, p99, syscalls []float64 }

// Run measures both servers in every round.
func Run(rounds int, progress func(string)) ([]report.Section, error) {
	folder, err := os.MkdirTemp("", "transport")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	binary := filepath.Join(folder, "plugin")
	if out, err := exec.Command("go", "build", "-o", binary, "./transport/server").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("building the servers: %w\n%s", err, out)
	}
	results := map[string]*outcome{}
	for round := range rounds {
		for _, n := range calls {
			for _, server := range servers {
				progress(fmt.Sprintf("round %d of %d, %s, %d calls", round+1, rounds, server, n))
				name := fmt.Sprint(server, n)
				if results[name] == nil {
					results[name] = &outcome{}
				}
				if err := measure(folder, server, n, results[name]); err != nil {
					return nil, fmt.Errorf("%s, %d calls: %w", server, n, err)
				}
			}
		}
	}
	return []report.Section{section(results)}, nil
}

func measure(folder, server string, calls int, out *outcome) error {
	socket := filepath.Join(folder, "plugin.socket")
	args := []string{"-kong-prefix", folder}
	if server == "kong-quota" {
		args = []string{"-socket", socket}
	}
	_ = os.Remove(socket)
	cmd := exec.Command(filepath.Join(folder, "plugin"), args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1") // as one of Kong's two cores
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var all []*kong
	for range connections {
		k, err := dial(socket, calls)
		if err != nil {
			return err
		}
		defer func() { _ = k.conn.Close() }()
		all = append(all, k)
	}
	if err := all[0].start(); err != nil {
		return err
	}
	for _, k := range all { // before the clock starts
		if err := k.event(); err != nil {
			return err
		}
	}
	before, err := syscalls(cmd.Process.Pid)
	if err != nil {
		return err
	}
	result, err := load.Run(connections, duration, func(i int) error { return all[i].event() })
	if err != nil {
		return err
	}
	after, err := syscalls(cmd.Process.Pid)
	if err != nil {
		return err
	}
	out.rate, out.p99 = append(out.rate, result.Rate), append(out.p99, result.P99)
	out.syscalls = append(out.syscalls, float64(after-before)/float64(result.Requests))
	return nil
}

// syscalls are a process' reads and writes so far.
func syscalls(pid int) (n int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, err
	}
	for _, found := range regexp.MustCompile(`sysc[rw]: (\d+)`).FindAllSubmatch(text, -1) {
		count, err := strconv.ParseInt(string(found[1]), 10, 64)
		if err != nil {
			return 0, err
		}
		n += count
	}
	return n, nil
}

// kong is Kong's side of a connection: what it sends is made once.
type kong struct {
	conn    net.Conn
	in      *bufio.Reader
	calls   int
	call    []byte
	replies map[string][]byte
	scratch []byte
}

func dial(socket string, calls int) (*kong, error) {
	var conn net.Conn
	var err error
	for range 200 {
		if conn, err = net.Dial("unix", socket); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		return nil, err
	}
	k := &kong{conn: conn, in: bufio.NewReader(conn), calls: calls, replies: map[string][]byte{}, scratch: make([]byte, 4096)}
	k.call = frame(&pb.RpcCall{Sequence: 7, Call: &pb.RpcCall_CmdHandleEvent{CmdHandleEvent: &pb.CmdHandleEvent{InstanceId: 1, EventName: "access"}}})
	k.replies["kong.client.get_consumer"] = frame(&pb.Consumer{Id: "6848f7ab-0d6f-4f0f-9d5c-2a6b5f3f5d2e", Username: "alice"})
	k.replies["kong.client.get_forwarded_ip"] = frame(&pb.String{V: "203.0.113.7"})
	k.replies["kong.response.set_headers"] = []byte{0, 0, 0, 0}
	return k, nil
}

func frame(m proto.Message) []byte {
	text, err := proto.Marshal(m)
	if err != nil {
		panic(err) // the messages are constants
	}
	return append(binary.LittleEndian.AppendUint32(nil, uint32(len(text))), text...)
}

func (k *kong) start() error {
	config := fmt.Appendf(nil, `{"__seq__":1,"calls":%d}`, k.calls)
	if _, err := k.conn.Write(frame(&pb.RpcCall{Sequence: 1, Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: &pb.CmdStartInstance{Name: "plugin", Config: config}}})); err != nil {
		return err
	}
	_, err := k.read()
	return err
}

// event runs one request, and checks that it made its calls.
func (k *kong) event() error {
	if _, err := k.conn.Write(k.call); err != nil {
		return err
	}
	made := 0
	for {
		method, err := k.read()
		if err != nil {
			return err
		}
		if len(method) == 0 {
			break
		}
		reply := k.replies[string(method)]
		if reply == nil {
			return fmt.Errorf("asked for %q", method)
		}
		if _, err := k.read(); err != nil {
			return err
		}
		made++
		if _, err := k.conn.Write(reply); err != nil {
			return err
		}
	}
	back, err := k.read()
	if err == nil && (made != k.calls || !bytes.Equal(back, []byte{8, 7})) {
		err = fmt.Errorf("%d calls, return %x", made, back)
	}
	return err
}

func (k *kong) read() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(k.in, size[:]); err != nil {
		return nil, err
	}
	payload := k.scratch[:binary.LittleEndian.Uint32(size[:])]
	_, err := io.ReadFull(k.in, payload)
	return payload, err
}

func section(results map[string]*outcome) report.Section {
	s := report.Section{
		Title: "Plugin protocol: events a second",
		Text: fmt.Sprintf("The plugin's side alone: a load generator on %d connections speaks Kong's side from memory,\nand does as little as it can. One PDK call is set_headers with two fields; three are get_consumer,\nget_forwarded_ip and that. The servers have one core. System calls are reads and writes of the\nserver (/proc/PID/io).",
			connections),
		Table: report.Table{Head: []string{"case", "events/s", "of go-pdk's", "p99 ms", "reads and writes an event"}},
		Plot:  &report.Plot{File: "transport", Unit: "events a second"},
	}
	median := func(name string, of func(*outcome) []float64) float64 { return report.Median(of(results[name])) }
	rate := func(o *outcome) []float64 { return o.rate }
	p99 := func(o *outcome) []float64 { return o.p99 }
	sys := func(o *outcome) []float64 { return o.syscalls }
	for _, n := range calls {
		theirs, ours := fmt.Sprint("go-pdk", n), fmt.Sprint("kong-quota", n)
		for _, server := range servers {
			name, title := fmt.Sprint(server, n), fmt.Sprintf("%s, %d calls", server, n)
			s.Table.Add(title, median(name, rate), median(name, rate)/median(theirs, rate), median(name, p99), median(name, sys))
			s.Plot.Names, s.Plot.Bars = append(s.Plot.Names, title), append(s.Plot.Bars, median(name, rate))
		}
		if n > 0 {
			s.Targets = append(s.Targets,
				report.Target{What: fmt.Sprintf("events/s with %d calls, of go-pdk's", n), Aim: map[int]float64{1: 1.5, 3: 2}[n], Measured: median(ours, rate) / median(theirs, rate)},
				report.Target{What: fmt.Sprintf("reads and writes with %d calls, of go-pdk's", n), Aim: 0.5, AtMost: true, Measured: median(ours, sys) / median(theirs, sys)})
		}
		s.Targets = append(s.Targets, report.Target{What: fmt.Sprintf("p99 with %d calls, of go-pdk's", n), Aim: 1, AtMost: true, Measured: median(ours, p99) / median(theirs, p99)})
	}
	return s
}
