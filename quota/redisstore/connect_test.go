package redisstore_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/testredis"
	"kong-quota/quota"
	"kong-quota/quota/redisstore"
	"kong-quota/quota/storetest"
)

func TestPasswordsAreNotPrinted(t *testing.T) {
	c := redisstore.Connection{Address: "r:6379", Username: "u", Password: "s3cret", Database: 2, TLS: true}
	for _, text := range []string{c.String(), fmt.Sprintf("%v", c), fmt.Sprintf("%+v", c), fmt.Sprintf("%#v", c)} {
		if text != "rediss://u@r:6379/2" {
			t.Errorf("printed %s", text)
		}
	}
}

func ask(t *testing.T, c redisstore.Connection) error {
	t.Helper()
	client, err := redisstore.Connect(c)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	within, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	_, err = redisstore.New(client).Spend(within, quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1})
	return err
}

func TestUsersAndPasswords(t *testing.T) {
	server := testredis.Start(t, "--requirepass", "s3cret", "--user", "quota", "on", ">pass", "~quota:*", "+@all", "-@dangerous")
	for _, c := range []struct {
		username, password string
		ok                 bool
	}{{"", "s3cret", true}, {"quota", "pass", true}, {"", "wrong", false}, {"", "", false}, {"quota", "wrong", false}} {
		err := ask(t, redisstore.Connection{Address: server.Address(), Username: c.username, Password: c.password})
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
		if err != nil && (!errors.Is(err, quota.ErrUnavailable) || strings.Contains(err.Error(), "wrong")) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A server that hangs is given up at the deadline; retries are within it.
func TestDeadline(t *testing.T) {
	server := testredis.Start(t)
	client, err := redisstore.Connect(redisstore.Connection{Address: server.Address(), ReadTimeout: time.Hour, WriteTimeout: time.Hour, DialTimeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	store := redisstore.New(client)
	request := quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1}
	if _, err := store.Spend(ctx, request); err != nil {
		t.Fatal(err)
	}
	server.Freeze()
	defer server.Thaw()
	within, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	d, err := store.Spend(within, request)
	if !errors.Is(err, quota.ErrUnavailable) || !errors.Is(within.Err(), context.DeadlineExceeded) || d.State != quota.Unknown {
		t.Errorf("got %v, %v", d, err)
	}
}

// certificates writes an authority, and a server's and a client's certificate.
func certificates(t *testing.T) (folder string) {
	t.Helper()
	folder = t.TempDir()
	write := func(name, kind string, der []byte) {
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	issue := func(name string, template, parent *x509.Certificate, signer *ecdsa.PrivateKey) *ecdsa.PrivateKey {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		if signer == nil {
			signer = key
		}
		der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		keyDER, err := x509.MarshalECPrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		write(name+".pem", "CERTIFICATE", der)
		write(name+".key", "EC PRIVATE KEY", keyDER)
		return key
	}
	template := func(n int64) *x509.Certificate {
		return &x509.Certificate{
			SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: fmt.Sprint("test ", n)},
			NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}
	}
	for i, name := range []string{"ca", "other-ca"} {
		ca := template(int64(i + 1))
		ca.IsCA, ca.BasicConstraintsValid, ca.KeyUsage = true, true, x509.KeyUsageCertSign
		key := issue(name, ca, ca, nil)
		if name == "ca" {
			server := template(10)
			server.DNSNames, server.IPAddresses = []string{"redis.test"}, []net.IP{net.IPv4(127, 0, 0, 1)}
			issue("server", server, ca, key)
			issue("client", template(11), ca, key)
		}
	}
	return folder
}

func TestTLS(t *testing.T) {
	folder := certificates(t)
	in := func(name string) string { return filepath.Join(folder, name) }
	port := strconv.Itoa(testredis.FreePort(t))
	address := net.JoinHostPort("127.0.0.1", port)
	testredis.Start(t, "--tls-port", port, "--tls-cert-file", in("server.pem"), "--tls-key-file", in("server.key"),
		"--tls-ca-cert-file", in("ca.pem"), "--tls-auth-clients", "yes")
	good := redisstore.Connection{Address: address, TLS: true, TLSCAFile: in("ca.pem"), TLSCertFile: in("client.pem"), TLSKeyFile: in("client.key"), DialTimeout: 10 * time.Second}
	for name, c := range map[string]struct {
		change func(*redisstore.Connection)
		want   string // "" for success
	}{
		"good":               {func(*redisstore.Connection) {}, ""},
		"server name":        {func(c *redisstore.Connection) { c.TLSServerName = "redis.test" }, ""},
		"wrong server name":  {func(c *redisstore.Connection) { c.TLSServerName = "elsewhere.test" }, "elsewhere.test"},
		"wrong authority":    {func(c *redisstore.Connection) { c.TLSCAFile = in("other-ca.pem") }, "certificate signed by unknown authority"},
		"not verified":       {func(c *redisstore.Connection) { c.TLSCAFile, c.TLSSkipVerify = "", true }, ""},
		"no certificate":     {func(c *redisstore.Connection) { c.TLSCertFile, c.TLSKeyFile = "", "" }, "tls"},
		"no key":             {func(c *redisstore.Connection) { c.TLSKeyFile = "" }, "client certificate: a certificate file and a key file go together"},
		"no such file":       {func(c *redisstore.Connection) { c.TLSCAFile = in("none") }, "certificate authorities: open " + in("none")},
		"not a certificate":  {func(c *redisstore.Connection) { c.TLSCAFile = in("ca.key") }, "certificate authorities: " + in("ca.key") + " has no PEM certificate"},
		"key of another one": {func(c *redisstore.Connection) { c.TLSKeyFile = in("ca.key") }, "client certificate: "},
	} {
		connection := good
		c.change(&connection)
		err := ask(t, connection)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

func TestWhatGoRedisWouldIgnore(t *testing.T) {
	for want, c := range map[string]redisstore.Connection{
		"redis+cluster://a:1/: a Redis Cluster has no Sentinels":                              {Address: "a:1", Cluster: true, SentinelMaster: "m"},
		"redis+cluster://a:1/: database 2: a Redis Cluster has database 0 only":               {Address: "a:1", Cluster: true, Database: 2},
		"redis://a:1,b:1/0: several addresses are for a Redis Cluster or Sentinels":           {Address: "a:1,b:1"},
		"TLS to rediss+sentinel://a:1/m/3: certificate authorities: open /none: no such file": {Address: "a:1", SentinelMaster: "m", Database: 3, TLS: true, TLSCAFile: "/none", Password: "x", SentinelPassword: "y"},
	} {
		if _, err := redisstore.Connect(c); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// A Cluster is found by any of its nodes.
func TestConnectToCluster(t *testing.T) {
	nodes := testredis.StartCluster(t).Options().Addrs
	if err := ask(t, redisstore.Connection{Address: "127.0.0.1:1, " + nodes[2], Cluster: true}); err != nil {
		t.Error(err)
	}
}

// While a slot moves to another node, and when it has, its counters go on.
func TestSlotsThatMove(t *testing.T) {
	cluster := testredis.StartCluster(t)
	store := redisstore.New(cluster)
	request := quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1}
	remaining := int64(-1)
	spend := func(moment string) {
		t.Helper()
		d, err := store.Spend(ctx, request)
		if err != nil {
			t.Fatalf("%s: %v", moment, err)
		}
		if remaining != -1 && d.Limits[0].Remaining != remaining-1 {
			t.Errorf("%s: %d remain after %d", moment, d.Limits[0].Remaining, remaining)
		}
		remaining = d.Limits[0].Remaining
	}
	do := func(node *redis.Client, args ...any) string {
		t.Helper()
		reply, err := node.Do(ctx, args...).Text()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return reply
	}
	spend("before")

	var from, to *redis.Client
	var key string
	nodes := cluster.Options().Addrs
	for _, address := range nodes {
		node := redis.NewClient(&redis.Options{Addr: address})
		t.Cleanup(func() { _ = node.Close() })
		keys, err := node.Keys(ctx, "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(keys) == 1 {
			from, key = node, keys[0]
		} else {
			to = node
		}
	}
	slot, err := from.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		t.Fatal(err)
	}
	fromID, toID := do(from, "cluster", "myid"), do(to, "cluster", "myid")
	do(to, "cluster", "setslot", slot, "importing", fromID)
	do(from, "cluster", "setslot", slot, "migrating", toID)
	spend("the slot is moving, the key is still here")
	host, port, _ := net.SplitHostPort(to.Options().Addr)
	do(from, "migrate", host, port, key, 0, 5000)
	spend("the slot is moving, the key is there")
	do(to, "cluster", "setslot", slot, "node", toID)
	do(from, "cluster", "setslot", slot, "node", toID)
	spend("the slot has moved")
	spend("the slot has moved, and the client knows")
}

// When the master is lost, Sentinel makes its replica the master, and the counters
// go on from what the replica had.
func TestSentinelFailover(t *testing.T) {
	servers := testredis.StartWatched(t, "s3cret", "sentinels-own")
	client, err := redisstore.Connect(redisstore.Connection{
		Address: "127.0.0.1:1," + servers.Sentinel.Address(), SentinelMaster: servers.Name,
		Password: "s3cret", SentinelPassword: "sentinels-own", DialTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	store := redisstore.New(client)
	request := quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1}
	before, err := store.Spend(ctx, request)
	if err != nil {
		t.Fatal(err)
	}
	servers.Synced()
	servers.Master.Stop()
	var after quota.Decision
	for deadline := time.Now().Add(time.Minute); ; {
		within, cancel := context.WithTimeout(ctx, time.Second)
		after, err = store.Spend(within, request)
		cancel()
		if err == nil {
			break
		}
		if !errors.Is(err, quota.ErrUnavailable) {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("no master within a minute: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got := after.Limits[0].Remaining; got != before.Limits[0].Remaining-1 {
		t.Errorf("%d remain after %d", got, before.Limits[0].Remaining)
	}
}

// A master that became a replica is left for the new one, where an address leads to
// either: the server says READONLY, and the next connection may reach another.
func TestDemotedMaster(t *testing.T) {
	servers := testredis.StartWatched(t, "", "")
	client, err := redisstore.Connect(redisstore.Connection{Address: servers.Replica.Address()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = client.Close() }()
	store := redisstore.New(client)
	for range 2 { // the first sends the script's text
		_, err = store.Spend(ctx, quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1})
		if !errors.Is(err, quota.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	if stats := client.PoolStats(); stats.TotalConns != 0 {
		t.Errorf("%d connections to it are kept", stats.TotalConns)
	}
}

// A server that will decide later is no answer, at once: it is not asked a second time.
func TestServerThatDecidesLater(t *testing.T) {
	server := testredis.Start(t, "--replicaof", "127.0.0.1 1", "--replica-serve-stale-data", "no")
	client := server.Client()
	store := redisstore.New(client)
	request := quota.Request{Scope: "s", Identity: alice, Policy: storetest.Policy(t, hourly), Cost: 1}
	_, _ = store.Spend(ctx, request) // sends the script's text
	if err := client.ConfigResetStat(ctx).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Spend(ctx, request); !errors.Is(err, quota.ErrUnavailable) || !strings.Contains(err.Error(), "MASTERDOWN") {
		t.Errorf("got %v", err)
	}
	asked, err := client.Info(ctx, "commandstats").Result()
	if err != nil || !strings.Contains(asked, "cmdstat_evalsha:") || strings.Contains(asked, "cmdstat_eval:") {
		t.Errorf("%v, %s", err, asked)
	}
}
