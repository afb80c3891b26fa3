// Package server runs a redis-server for the benchmarks.
package server

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Info adds up the numbers in a section of INFO that the pattern has as its first
// group. It is an error if there is none.
func Info(client *redis.Client, section, pattern string) (sum float64, err error) {
	text, err := client.Info(context.Background(), section).Result()
	if err != nil {
		return 0, err
	}
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
	if found == nil {
		return 0, fmt.Errorf("INFO %s has no %s", section, pattern)
	}
	for _, match := range found {
		n, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			return 0, fmt.Errorf("INFO %s: %w", section, err)
		}
		sum += n
	}
	return sum, nil
}

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
