package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kong-quota/internal/authorities"
	"kong-quota/internal/kongconfig"
	"kong-quota/internal/settings"
	"kong-quota/quota/redisstore"
)

// source says where the configurations are, and which of them are meant.
type source struct {
	files          []string
	admin          string
	adminHeaders   []string
	adminTLS       adminTLS
	envFile        string
	service, route string
}

func (s *source) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringArrayVarP(&s.files, "file", "f", nil, "declarative configuration of Kong (kong.yml); may be given several times")
	f.StringVar(&s.admin, "admin", "", "URL of Kong's Admin API, such as http://127.0.0.1:8001")
	f.StringArrayVar(&s.adminHeaders, "admin-header", nil, `header of requests to the Admin API, as "Name: value"; $QUOTACTL_ADMIN_TOKEN is sent as Kong-Admin-Token`)
	f.StringVar(&s.adminTLS.caFile, "admin-ca", "", "PEM file of the authorities of the Admin API's certificate; the system's without it")
	f.StringVar(&s.adminTLS.certFile, "admin-cert", "", "PEM file of a client certificate for the Admin API")
	f.StringVar(&s.adminTLS.keyFile, "admin-key", "", "PEM file of the client certificate's key")
	f.BoolVar(&s.adminTLS.skipVerify, "admin-skip-verify", false, "accept any certificate of the Admin API")
	f.StringVar(&s.envFile, "env-file", "", "file with QUOTA_ variables: how to reach Redis; the environment's count before it")
	f.StringVar(&s.service, "service", "", "only what is counted on this service")
	f.StringVar(&s.route, "route", "", "only what is counted on this route")
	c.MarkFlagsMutuallyExclusive("file", "admin")
	c.MarkFlagsMutuallyExclusive("service", "route")
	c.MarkFlagsRequiredTogether("admin-cert", "admin-key")
}

// adminTLS is how to speak TLS with the Admin API. Kong's Ingress Controller and its
// gateway know each other by certificates there.
type adminTLS struct {
	caFile, certFile, keyFile string
	skipVerify                bool
}

func (a adminTLS) config() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: a.skipVerify}
	if a.caFile != "" {
		var err error
		if config.RootCAs, err = authorities.Read(a.caFile); err != nil {
			return nil, fmt.Errorf("--admin-ca: %w", err)
		}
	}
	if a.certFile != "" {
		pair, err := tls.LoadX509KeyPair(a.certFile, a.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--admin-cert, --admin-key: %w", err)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// read reads the configurations.
func (s *source) read(ctx context.Context) (*kongconfig.Configuration, error) {
	if s.admin == "" {
		if len(s.files) == 0 {
			return nil, errors.New("say where the limits are: --admin URL or --file kong.yml")
		}
		c, err := kongconfig.Read(s.files...)
		if err == nil && len(c.Problems) > 0 {
			err = fmt.Errorf("%s (see quotactl lint)", c.Problems[0])
		}
		return c, err
	}
	header := http.Header{}
	if token := os.Getenv("QUOTACTL_ADMIN_TOKEN"); token != "" {
		header.Set("Kong-Admin-Token", token)
	}
	for _, h := range s.adminHeaders {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return nil, fmt.Errorf("--admin-header: %q must be \"Name: value\"", name)
		}
		header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	config, err := s.adminTLS.config()
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config}}
	return kongconfig.Admin{URL: s.admin, Header: header, Client: client}.Read(ctx)
}

// open reads the configurations and the settings. It does not connect to Redis yet.
func (s *source) open(ctx context.Context) (*ledger, error) {
	configuration, err := s.read(ctx)
	if err != nil {
		return nil, err
	}
	process, _, err := settings.Load(s.envFile)
	if err != nil {
		return nil, err
	}
	l := &ledger{Configuration: configuration, settings: process, byConsumer: map[string][]int{}, stores: map[redisstore.Connection]*redisstore.Store{}}
	for _, p := range configuration.Plugins {
		if p.Disabled || s.service != "" && !p.Service.Is(s.service) || s.route != "" && !p.Route.Is(s.route) {
			continue
		}
		resolve(p, process)
		one, err := countersOf(p, process)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Place, err)
		}
		if one.Elsewhere {
			return nil, fmt.Errorf("%s: only the running Kong knows the id of what this is on: use --admin", p.Place)
		}
		l.add(one)
	}
	if len(l.all) == 0 {
		return nil, errors.New("no configuration of quota is there, or none of what was asked for")
	}
	return l, nil
}
