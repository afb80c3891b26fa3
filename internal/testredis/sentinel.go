package testredis

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Watched is a master with a replica and a Sentinel, which makes the replica the
// master when the master is gone for half a second.
type Watched struct {
	Name                      string // the master's, to the Sentinel
	Master, Replica, Sentinel *Server
	password                  string
}

// StartWatched runs the three until the test ends, with passwords where there are
// some.
func StartWatched(t testing.TB, password, sentinelPassword string) *Watched {
	t.Helper()
	args := []string{"--repl-diskless-sync-delay", "0"}
	lines := []string{"sentinel resolve-hostnames no"}
	w := &Watched{Name: "counters", password: password}
	if password != "" {
		args = append(args, "--requirepass", password, "--masterauth", password)
		lines = append(lines, "sentinel auth-pass "+w.Name+" "+password)
	}
	if sentinelPassword != "" {
		lines = append(lines, "requirepass "+sentinelPassword)
	}
	w.Master = Start(t, args...)
	master := strconv.Itoa(w.Master.Port)
	w.Replica = Start(t, append(args, "--replicaof", "127.0.0.1 "+master)...)
	w.Synced()

	// Sentinel writes what it finds into its file.
	file := t.TempDir() + "/sentinel.conf"
	lines = append([]string{
		"sentinel monitor " + w.Name + " 127.0.0.1 " + master + " 1",
		"sentinel down-after-milliseconds " + w.Name + " 500",
		"sentinel failover-timeout " + w.Name + " 10000",
	}, lines...)
	if err := os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Sentinel = &Server{Port: FreePort(t), t: t, file: file, args: []string{"--sentinel"}}
	w.Sentinel.Restart()
	t.Cleanup(w.Sentinel.Stop)
	sentinel := redis.NewSentinelClient(&redis.Options{Addr: w.Sentinel.Address(), Password: sentinelPassword})
	defer func() { _ = sentinel.Close() }()
	until(t, "the Sentinel knows the replica", func() error {
		replicas, err := sentinel.Replicas(context.Background(), w.Name).Result()
		if err == nil && len(replicas) != 1 {
			err = fmt.Errorf("it knows %d", len(replicas))
		}
		return err
	})
	return w
}

var offset = regexp.MustCompile(`master_repl_offset:(\d+)`)

// Synced waits until the replica has what the master has now.
func (w *Watched) Synced() {
	t := w.Master.t
	t.Helper()
	master, err := w.replication(w.Master)
	if err != nil {
		t.Fatal(err)
	}
	has := func(info string) int {
		n, _ := strconv.Atoi(append(offset.FindStringSubmatch(info), "", "")[1])
		return n
	}
	until(t, "the replica has what the master has", func() error {
		replica, err := w.replication(w.Replica)
		if err == nil && (!strings.Contains(replica, "master_link_status:up") || has(replica) < has(master)) {
			err = fmt.Errorf("it has not:\n%s", replica)
		}
		return err
	})
}

func (w *Watched) replication(s *Server) (string, error) {
	client := redis.NewClient(&redis.Options{Addr: s.Address(), Password: w.password})
	defer func() { _ = client.Close() }()
	return client.Info(context.Background(), "replication").Result()
}

// until asks again and again until there is no error.
func until(t testing.TB, what string, ask func() error) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within 30 s: %s: %v", what, err)
		}
	}
}
