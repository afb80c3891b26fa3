// Package server runs a redis-server for the benchmarks.
package server

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Start starts a redis-server without persistence on a free port.
func Start() (client *redis.Client, stop func(), err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	address := listener.Addr().(*net.TCPAddr)
	_ = listener.Close()
	cmd := exec.Command("redis-server", "--port", strconv.Itoa(address.Port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("redis-server: %w", err)
	}
	client = redis.NewClient(&redis.Options{Addr: address.String(), ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 64, MaxRetries: 1})
	stop = func() { _ = client.Close(); _ = cmd.Process.Kill(); _ = cmd.Wait() }
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if err = client.Ping(context.Background()).Err(); err == nil {
			return client, stop, nil
		}
		if time.Now().After(deadline) {
			stop()
			return nil, nil, err
		}
	}
}
