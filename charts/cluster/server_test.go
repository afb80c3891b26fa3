// Package cluster installs the chart with helm into a real API server of Kubernetes:
// its admission, its validation and its defaults, with etcd behind it, all in the
// process of the test. No node is there, so no pod runs; charts/test runs what is in
// them.
package cluster

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

// token is of a user who may do everything.
const token = "t"

// server is an API server, and what it has warned of.
type server struct {
	url    string
	client *kubernetes.Clientset
	config *rest.Config

	mu       sync.Mutex
	warnings []string
}

// start runs etcd and the API server until the process ends: neither can be stopped
// and started again in one process.
func start(folder string) (*server, error) {
	etcd, err := startEtcd(filepath.Join(folder, "etcd"))
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	key, err := serviceAccountKey(folder)
	if err != nil {
		return nil, err
	}
	users := filepath.Join(folder, "tokens.csv")
	if err := os.WriteFile(users, []byte(token+",tester,tester,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	command := app.NewAPIServerCommand()
	command.SetArgs([]string{
		"--etcd-servers=" + etcd, "--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port), "--cert-dir=" + folder,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key,
		"--token-auth-file=" + users, "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--allow-privileged=false", "--endpoint-reconciler-type=none", "-v=0",
	})
	ended := make(chan error, 1)
	go func() { ended <- command.ExecuteContext(context.Background()) }()

	s := &server{url: "https://127.0.0.1:" + strconv.Itoa(port)}
	s.config = &rest.Config{Host: s.url, BearerToken: token, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: 1000, Burst: 1000, WarningHandler: s}
	if s.client, err = kubernetes.NewForConfig(s.config); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		answer, err := s.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(context.Background())
		if err == nil && string(answer) == "ok" {
			return s, nil
		}
		select {
		case err := <-ended:
			return nil, fmt.Errorf("the API server ended: %w", err)
		default:
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the API server is not ready: %w, %s", err, answer)
		}
	}
}

func startEtcd(folder string) (string, error) {
	config := embed.NewConfig()
	config.Dir, config.LogLevel, config.UnsafeNoFsync = folder, "error", true
	var listen []url.URL
	for range 2 {
		port, err := freePort()
		if err != nil {
			return "", err
		}
		listen = append(listen, url.URL{Scheme: "http", Host: net.JoinHostPort("127.0.0.1", strconv.Itoa(port))})
	}
	config.ListenClientUrls, config.AdvertiseClientUrls = listen[:1], listen[:1]
	config.ListenPeerUrls, config.AdvertisePeerUrls = listen[1:], listen[1:]
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return "", err
	}
	select {
	case <-etcd.Server.ReadyNotify():
		return listen[0].String(), nil
	case err := <-etcd.Err():
		return "", err
	}
}

func serviceAccountKey(folder string) (string, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	file := filepath.Join(folder, "service-accounts.key")
	return file, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// HandleWarningHeader keeps what the server warns of: deprecated versions, unknown
// fields, pods that a namespace would not take.
func (s *server) HandleWarningHeader(_ int, _, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.warnings = append(s.warnings, text)
}

// warned gives the warnings since the last call.
func (s *server) warned() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.warnings
	s.warnings = nil
	return all
}

// getter is how helm reaches the server in a namespace.
func (s *server) getter(namespace string) genericclioptions.RESTClientGetter {
	insecure, bearer := true, token
	flags := genericclioptions.NewConfigFlags(false)
	flags.APIServer, flags.BearerToken, flags.Insecure, flags.Namespace = &s.url, &bearer, &insecure, &namespace
	flags.WrapConfigFn = func(c *rest.Config) *rest.Config {
		c.WarningHandler, c.QPS, c.Burst = s, 1000, 1000
		return c
	}
	return flags
}

var kube *server

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	folder, err := os.MkdirTemp("", "kong-quota-cluster-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(folder) }()
	if kube, err = start(folder); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
