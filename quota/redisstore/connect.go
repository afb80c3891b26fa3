package redisstore

import (
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"kong-quota/internal/authorities"
)

// Connection says how to reach a Redis server, the servers of a Redis Cluster, or
// the master that Sentinels know. It is comparable: equal connections can share one
// client.
type Connection struct {
	// Address is the server's host:port. On a Cluster it is a node's, and with a
	// SentinelMaster a Sentinel's; there may be several then, with commas between,
	// and one that answers is enough to find the others.
	Address  string
	Username string // ACL user; "" for the default user
	Password string
	Database int // 0 on a Cluster, which has no other

	Cluster bool // the servers are a Redis Cluster

	// SentinelMaster is the name by which the Sentinels at Address know the master;
	// "" without Sentinels. They have users and passwords of their own.
	SentinelMaster                     string
	SentinelUsername, SentinelPassword string

	TLS           bool
	TLSServerName string // name to verify; "" for the host of Address
	TLSSkipVerify bool   // accept any certificate
	TLSCAFile     string // PEM; "" for the system's authorities
	TLSCertFile   string // PEM client certificate; goes with TLSKeyFile
	TLSKeyFile    string

	// DialTimeout bounds a connection attempt, ReadTimeout and WriteTimeout one
	// exchange where the context has no earlier deadline.
	DialTimeout, ReadTimeout, WriteTimeout time.Duration
	PoolSize                               int // connections at most; 0 for go-redis' default
}

// String names the server and hides the passwords.
func (c Connection) String() string {
	scheme := "redis"
	if c.TLS {
		scheme = "rediss"
	}
	path := strconv.Itoa(c.Database)
	switch {
	case c.Cluster:
		scheme, path = scheme+"+cluster", ""
	case c.SentinelMaster != "":
		scheme, path = scheme+"+sentinel", c.SentinelMaster+"/"+path
	}
	user := ""
	if c.Username != "" {
		user = c.Username + "@"
	}
	return fmt.Sprintf("%s://%s%s/%s", scheme, user, c.Address, path)
}

// GoString hides the password from %#v too.
func (c Connection) GoString() string { return c.String() }

// Connect makes a client. It does not wait for the server, which may come later;
// an error is about the connection's fields and the files that they name.
//
// A call is tried twice at most, within the context's deadline. The second try
// is for connections that the server has closed meanwhile; should a connection
// break after the server has decided and before it has answered, that request is
// charged twice, which never admits one too many. On a Cluster a call follows as
// many redirections as go-redis does by itself.
func Connect(c Connection) (redis.UniversalClient, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	options := &redis.UniversalOptions{
		Addrs:                 c.addresses(),
		IsClusterMode:         c.Cluster,
		MasterName:            c.SentinelMaster,
		SentinelUsername:      c.SentinelUsername,
		SentinelPassword:      c.SentinelPassword,
		Username:              c.Username,
		Password:              c.Password,
		DB:                    c.Database,
		DialTimeout:           c.DialTimeout,
		ReadTimeout:           c.ReadTimeout,
		WriteTimeout:          c.WriteTimeout,
		PoolSize:              c.PoolSize,
		MaxRetries:            1,
		DialerRetries:         1,
		ContextTimeoutEnabled: true,
		DisableIdentity:       true,
	}
	if c.TLS {
		config, err := c.tls()
		if err != nil {
			return nil, fmt.Errorf("TLS to %s: %w", c, err)
		}
		options.TLSConfig = config
	}
	return redis.NewUniversalClient(options), nil
}

func (c Connection) addresses() []string {
	all := strings.Split(c.Address, ",")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
	}
	return all
}

// check finds what go-redis would ignore, or understand in another way.
func (c Connection) check() error {
	switch {
	case c.Cluster && c.SentinelMaster != "":
		return fmt.Errorf("%s: a Redis Cluster has no Sentinels", c)
	case c.Cluster && c.Database != 0:
		return fmt.Errorf("%s: database %d: a Redis Cluster has database 0 only", c, c.Database)
	case !c.Cluster && c.SentinelMaster == "" && strings.Contains(c.Address, ","):
		return fmt.Errorf("%s: several addresses are for a Redis Cluster or Sentinels", c)
	}
	return nil
}

func (c Connection) tls() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         c.TLSServerName,
		InsecureSkipVerify: c.TLSSkipVerify,
	}
	if c.TLSCAFile != "" {
		var err error
		if config.RootCAs, err = authorities.Read(c.TLSCAFile); err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		return nil, errors.New("client certificate: a certificate file and a key file go together")
	}
	if c.TLSCertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.TLSCertFile, c.TLSKeyFile)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}
