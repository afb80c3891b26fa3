package devkong

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"
)

// maxFrame bounds what a plugin can make devkong allocate.
const maxFrame = 64 << 20

// connection speaks frames: a length of four bytes, little-endian, and a
// payload. What it writes leaves with flush.
type connection struct {
	net.Conn
	in   *bufio.Reader
	out  *bufio.Writer
	used bool // it has answered a call before
}

func dial(socket string) (*connection, error) {
	conn, err := net.DialTimeout("unix", socket, 5*time.Second)
	if err != nil {
		return nil, err
	}
	return &connection{Conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn)}, nil
}

func (c *connection) read() ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is above the bound of %d", n, maxFrame)
	}
	payload := make([]byte, n)
	_, err := io.ReadFull(c.in, payload)
	return payload, err
}

func (c *connection) write(payload []byte) error {
	var size [4]byte
	binary.LittleEndian.PutUint32(size[:], uint32(len(payload)))
	if _, err := c.out.Write(size[:]); err != nil {
		return err
	}
	_, err := c.out.Write(payload)
	return err
}
