package pluginserver

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// maxFrame bounds a frame: a configuration is the largest thing that Kong sends.
const maxFrame = 64 << 20

// wire is a connection with its buffers. A frame is a length, 4 bytes little
// endian, and a payload.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte // frames to send with the next write
	held int    // bytes of `in` that the last frame is in
}

func newWire(conn net.Conn) *wire {
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 8<<10), out: make([]byte, 0, 2<<10)}
}

// read gives the next frame, which is valid until the next read.
func (w *wire) read() ([]byte, error) {
	_, _ = w.in.Discard(w.held) // it is buffered
	w.held = 0
	head, err := w.in.Peek(4)
	if err != nil {
		if len(head) > 0 && errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	size := int(binary.LittleEndian.Uint32(head))
	if size > maxFrame {
		return nil, fmt.Errorf("a frame of %d bytes is announced; it must not be above %d", size, maxFrame)
	}
	if 4+size <= w.in.Size() {
		frame, err := w.in.Peek(4 + size)
		if err != nil {
			return nil, unexpected(err)
		}
		w.held = 4 + size
		return frame[4:], nil
	}
	_, _ = w.in.Discard(4)
	frame := make([]byte, size)
	_, err = io.ReadFull(w.in, frame)
	return frame, unexpected(err)
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// frame begins a frame; its end is told by end.
func (w *wire) frame() (start int) {
	w.out = append(w.out, 0, 0, 0, 0)
	return len(w.out)
}

func (w *wire) end(start int) {
	binary.LittleEndian.PutUint32(w.out[start-4:], uint32(len(w.out)-start))
}

// flush sends what was written, in one write.
func (w *wire) flush() error {
	if len(w.out) == 0 {
		return nil
	}
	_, err := w.conn.Write(w.out)
	w.out = w.out[:0]
	return err
}
