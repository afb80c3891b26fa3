package redisstore

import (
	"encoding/binary"
	"testing"

	"kong-quota/quota"
)

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, 1)
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x00"), 0)
	f.Fuzz(func(t *testing.T, data []byte, limits int) {
		limits &= 15
		numbers := make([]int64, len(data)/8)
		for i := range numbers {
			numbers[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
		r, err := decode(numbers, limits)
		if err != nil || r.outOfBounds {
			return
		}
		d := r.decision(make([]quota.Rule, limits))
		if len(d.Limits) != limits || d.State == quota.Unknown {
			t.Errorf("%v: %+v", numbers, d)
		}
	})
}

func TestDecodeRefuses(t *testing.T) {
	for _, numbers := range [][]int64{nil, {1}, {1, 5, 0, 1}, {2, 5, 0, 1, 0, 1, 1, 1}, {-1, 5, 0}, {1, 5, 0, 1, -1, 1, 1, 1}, {0, 5, 0, 1, -2, 1, 1, 1}, {1, 5, 0, 1, 0, -1, 1, 1}, {1, 5, 0, 1, 0, 1, -1, 1}, {1, 5, 0, 1, 0, 1, 1, -1}, {1, 5, 0, 1, 0, 1, 1, 1, 0}} {
		if r, err := decode(numbers, 1); err == nil {
			t.Errorf("%v: %+v", numbers, r)
		}
	}
	if r, err := decode([]int64{1, 1, 0, 5, 0, 3, 7, 7}, 1); err != nil || !r.passed || r.now != 5 || r.charged != 1 {
		t.Errorf("a good reply: %+v, %v", r, err)
	}
}
