package redisstore

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/redis/go-redis/v9"
)

// Connection says how to reach a Redis server. It is comparable: equal
// connections can share one client.
type Connection struct {
	Address  string // host:port
	Username string // ACL user; "" for the default user
	Password string
	Database int

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

// String names the server and hides the password.
func (c Connection) String() string {
	scheme := "redis"
	if c.TLS {
		scheme = "rediss"
	}
	user := ""
	if c.Username != "" {
		user = c.Username + "@"
	}
	return fmt.Sprintf("%s://%s%s/%d", scheme, user, c.Address, c.Database)
}

// GoString hides the password from %#v too.
func (c Connection) GoString() string { return c.String() }

// Connect makes a client. It does not wait for the server, which may come later;
// an error is about the files that the connection names.
//
// A call is tried twice at most, within the context's deadline. The second try
// is for connections that the server has closed meanwhile; should a connection
// break after the server has decided and before it has answered, that request is
// charged twice, which never admits one too many.
func Connect(c Connection) (*redis.Client, error) {
	options := &redis.Options{
		Addr:                  c.Address,
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
	return redis.NewClient(options), nil
}

func (c Connection) tls() (*tls.Config, error) {
	config := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         c.TLSServerName,
		InsecureSkipVerify: c.TLSSkipVerify,
	}
	if c.TLSCAFile != "" {
		pem, err := os.ReadFile(c.TLSCAFile)
		if err != nil {
			return nil, fmt.Errorf("certificate authorities: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("certificate authorities: %s has no PEM certificate", c.TLSCAFile)
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
