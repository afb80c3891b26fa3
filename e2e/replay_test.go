package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"

	"kong-quota/internal/devkong"
)

const transcripts = "../../shared/kong-transcripts"

// frame is a recorded frame.
type frame struct{ Kind, Hex string }

func (f frame) payload(t *testing.T) []byte {
	t.Helper()
	payload, err := hex.DecodeString(f.Hex)
	if err != nil {
		t.Fatal(err)
	}
	return payload
}

// TestReplay plays Kong's side of the recordings to our plugin server: the very
// frames that a real Kong sent, but for the config field that only the recorded
// plugin had. What ours asks is answered with what Kong answered there.
func TestReplay(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(transcripts, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Skip("the recordings of real Kong are not here")
	}
	folder := t.TempDir()
	envFile := filepath.Join(folder, "quota.env")
	if err := os.WriteFile(envFile, []byte("QUOTA_STORE=memory\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// devkong only starts and supervises the server here.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := devkong.Start(ctx, devkong.Options{
		Config: []byte("_format_version: '3.0'"), Plugin: pluginBinary, Prefix: folder,
		StartCommand: []string{pluginBinary, "-kong-prefix", folder, "-env-file", envFile}, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = g.Close() }()

	started := map[int32][]byte{} // configs by the instance's id, from all recordings
	recordings := map[string][]frame{}
	for _, file := range files {
		text, err := os.ReadFile(file)
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
			if call := new(pb.RpcCall); f.Kind == "rpc-call" && proto.Unmarshal(f.payload(t), call) == nil {
				if start := call.GetCmdStartInstance(); start != nil {
					var seq struct {
						Seq int32 `json:"__seq__"`
					}
					if err := json.Unmarshal(start.Config, &seq); err != nil {
						t.Fatal(err)
					}
					started[seq.Seq] = start.Config
				}
			}
		}
		recordings[file] = frames
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			k := dialPlugin(t, filepath.Join(folder, "quota.socket"))
			frames := recordings[file]
			for i, f := range frames {
				if f.Kind == "pdk-reply" {
					k.answers[string(frames[i-2].payload(t))+" "+frames[i-1].Hex] = f.payload(t)
				}
			}
			events := 0
			for _, f := range frames {
				if f.Kind != "rpc-call" {
					continue
				}
				call := new(pb.RpcCall)
				if err := proto.Unmarshal(f.payload(t), call); err != nil {
					t.Fatal(err)
				}
				events += k.play(call, started)
			}
			if events == 0 {
				t.Error("no event was played")
			}
		})
	}
}

// replayed is Kong's side of one connection.
type replayed struct {
	t         *testing.T
	conn      net.Conn
	in        *bufio.Reader
	answers   map[string][]byte // replies, by method and arguments
	instances map[int32]bool    // that run
}

func dialPlugin(t *testing.T, socket string) *replayed {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	return &replayed{t: t, conn: conn, in: bufio.NewReader(conn), answers: map[string][]byte{}, instances: map[int32]bool{}}
}

// instance starts an instance that no recording has.
func (k *replayed) instance(id int32) {
	k.t.Helper()
	k.ensure(id, nil)
}

// play sends a recorded call and holds the return to it. It gives the number of
// events that were run.
func (k *replayed) play(call *pb.RpcCall, configs map[int32][]byte) int {
	k.t.Helper()
	switch c := call.Call.(type) {
	case *pb.RpcCall_CmdStartInstance:
		c.CmdStartInstance.Config = ours(k.t, c.CmdStartInstance.Config)
		k.send(call)
		var seq struct {
			Seq int32 `json:"__seq__"`
		}
		_ = json.Unmarshal(c.CmdStartInstance.Config, &seq)
		status := k.returned(call).GetInstanceStatus()
		if status.GetName() != "quota" || status.GetInstanceId() != seq.Seq || status.GetStartedAt() == 0 {
			k.t.Errorf("status %v of instance %d", status, seq.Seq)
		}
		k.instances[seq.Seq] = true
	case *pb.RpcCall_CmdCloseInstance:
		k.ensure(c.CmdCloseInstance.InstanceId, configs)
		k.send(call)
		if status := k.returned(call).GetInstanceStatus(); status.GetInstanceId() != c.CmdCloseInstance.InstanceId {
			k.t.Errorf("closed %v", status)
		}
	case *pb.RpcCall_CmdHandleEvent:
		k.ensure(c.CmdHandleEvent.InstanceId, configs)
		k.send(call)
		for {
			method := string(k.read())
			if method == "" {
				break
			}
			args := k.read()
			reply, known := k.answers[method+" "+hex.EncodeToString(args)]
			if !known && !strings.HasPrefix(method, "kong.response.set_header") {
				k.t.Fatalf("asked for %s %x, which was not recorded", method, args)
			}
			k.write(reply)
		}
		k.returned(call)
		return 1
	}
	return 0
}

// ensure starts an instance that ran before the recording began. Where its start
// was in no recording, it is bob's: the service's five a day.
func (k *replayed) ensure(id int32, configs map[int32][]byte) {
	k.t.Helper()
	if k.instances[id] {
		return
	}
	config := configs[id]
	if config == nil {
		var err error
		if config, err = json.Marshal(map[string]any{"__seq__": id, "limits": []map[string]any{{"name": "daily", "limit": 5, "window": "day"}}, "redis": map[string]any{}}); err != nil {
			k.t.Fatal(err)
		}
	}
	k.play(&pb.RpcCall{Sequence: 1000, Call: &pb.RpcCall_CmdStartInstance{CmdStartInstance: &pb.CmdStartInstance{Name: "quota", Config: config}}}, nil)
}

// ours drops the field that only the recorded plugin had.
func ours(t *testing.T, config []byte) []byte {
	t.Helper()
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "identifier")
	text, err := json.Marshal(fields)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func (k *replayed) send(call *pb.RpcCall) {
	k.t.Helper()
	text, err := proto.Marshal(call)
	if err != nil {
		k.t.Fatal(err)
	}
	k.write(text)
}

func (k *replayed) write(payload []byte) {
	k.t.Helper()
	if _, err := k.conn.Write(append(binary.LittleEndian.AppendUint32(nil, uint32(len(payload))), payload...)); err != nil {
		k.t.Fatal(err)
	}
}

func (k *replayed) read() []byte {
	k.t.Helper()
	var size [4]byte
	if _, err := io.ReadFull(k.in, size[:]); err != nil {
		k.t.Fatal(err)
	}
	payload := make([]byte, binary.LittleEndian.Uint32(size[:]))
	if _, err := io.ReadFull(k.in, payload); err != nil {
		k.t.Fatal(err)
	}
	return payload
}

func (k *replayed) returned(call *pb.RpcCall) *pb.RpcReturn {
	k.t.Helper()
	reply := new(pb.RpcReturn)
	if err := proto.Unmarshal(k.read(), reply); err != nil {
		k.t.Fatal(err)
	}
	if reply.Sequence != call.Sequence {
		k.t.Errorf("return %d for call %d", reply.Sequence, call.Sequence)
	}
	return reply
}
