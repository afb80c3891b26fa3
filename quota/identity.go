package quota

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Identity is who is charged, e.g. "consumer:2d1f…", or several parts that are
// charged together, e.g. "consumer:2d1f…+ip:10.0.0.7". It is made by
// [NewIdentity] and [Compound] only, so that no value that a client chose can
// take the form of another identity or break out of a key.
type Identity string

// maxIdentityValue is the longest value, in bytes, that stands in an identity
// as it is. A longer one is replaced by its SHA-256, because clients choose the
// values of headers and keys are kept in memory.
const maxIdentityValue = 128

// NewIdentity names one party: kind is the sort of thing ("consumer", "ip",
// "phone"), value which one. Every value is allowed and two different values
// give two different identities (a value above 128 bytes by its SHA-256).
func NewIdentity(kind, value string) Identity {
	if len(value) > maxIdentityValue {
		sum := sha256.Sum256([]byte(value))
		return Identity(escape(kind) + ":sha256=" + hex.EncodeToString(sum[:]))
	}
	return Identity(escape(kind) + ":" + escape(value))
}

// Compound is the identity of all parts together: the same only where every
// part is the same, in the same order.
func Compound(parts ...Identity) Identity {
	texts := make([]string, len(parts))
	for i, part := range parts {
		texts[i] = string(part)
	}
	return Identity(strings.Join(texts, "+"))
}

// escape keeps letters, digits and . _ : @ - and writes every other byte as
// %XX. So no value contains a brace (the hash tag of Redis Cluster), a "+" (the
// join of a compound) or a "=" (the mark of a hash).
func escape(value string) string {
	clean := true
	for i := 0; i < len(value) && clean; i++ {
		clean = plain(value[i])
	}
	if clean {
		return value
	}
	var b strings.Builder
	for i := 0; i < len(value); i++ {
		if c := value[i]; plain(c) {
			b.WriteByte(c)
		} else {
			const digits = "0123456789ABCDEF"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		}
	}
	return b.String()
}

func plain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' ||
		c == '.' || c == '_' || c == ':' || c == '@' || c == '-'
}
