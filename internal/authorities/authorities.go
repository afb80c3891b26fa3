// Package authorities reads files of certificate authorities.
package authorities

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Read gives the authorities in a PEM file, and an error if it has none.
func Read(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no PEM certificate", file)
	}
	return pool, nil
}
