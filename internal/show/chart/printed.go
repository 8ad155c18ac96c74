package chart

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strconv"
)

// ParsePrinted reads histograms in the output of bpftrace -f json, by the name
// of the map and the key.
func ParsePrinted(data json.RawMessage) (map[string][]Bucket, error) {
	type bucket struct {
		Min, Max *json.RawMessage
		Count    uint64
	}
	of, err := members(data)
	if err != nil {
		return nil, err
	}
	out := map[string][]Bucket{}
	read := func(title string, data json.RawMessage) error {
		var bs []bucket
		if err := json.Unmarshal(data, &bs); err != nil {
			return err
		}
		out[title] = []Bucket{}
		for _, b := range bs {
			x, err := bucketOf(b.Min, b.Max)
			if err != nil {
				return err
			}
			x.Count = b.Count
			out[title] = append(out[title], x)
		}
		return nil
	}
	for name, v := range of {
		keyed, err := members(v)
		if err != nil {
			if err := read(name, v); err != nil {
				return nil, err
			}
		}
		for key, v := range keyed {
			if err := read(name+"["+key+"]", v); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// members returns the members of an object. Two keys that consist of two parts
// may print alike, such as "a,b" with "c" and "a" with "b,c". The second one
// gets a number appended.
func members(data json.RawMessage) (map[string]json.RawMessage, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return nil, cmp.Or(err, errors.New("no object"))
	}
	out := map[string]json.RawMessage{}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return nil, err
		}
		first := t.(string) // a member's name
		name := first
		for n := 2; out[name] != nil; n++ {
			name = fmt.Sprintf("%s (%d)", first, n)
		}
		out[name] = v
	}
	_, err := d.Token()
	return out, err
}

// bucketOf returns the bucket from first to last, inclusive, with the label that
// scripts print. Without first or last, the bucket is open at that end.
func bucketOf(first, last *json.RawMessage) (b Bucket, err error) {
	number := func(m *json.RawMessage) *big.Int {
		text := string(*m)
		if s, err := strconv.Unquote(text); err == nil {
			text = s // too large for a number of JSON
		}
		n, ok := new(big.Int).SetString(text, 10)
		if !ok {
			err = errors.Join(err, fmt.Errorf("%q is no number", text))
			n = new(big.Int)
		}
		return n
	}
	at := func(n *big.Int) float64 { f, _ := new(big.Float).SetInt(n).Float64(); return f }
	one := big.NewInt(1)
	switch {
	case first == nil && last == nil:
		return b, errors.New("a bucket without ends")
	case first == nil:
		n := number(last)
		return Bucket{At: at(n) - 1e300, Label: "(..., " + edge(n.Add(n, one)) + ")"}, err
	case last == nil:
		n := number(first)
		return Bucket{At: at(n), Label: "[" + edge(n) + ", ...)"}, err
	}
	lo, hi := number(first), number(last)
	b = Bucket{At: at(lo), Label: "[" + edge(lo) + "]"}
	if lo.Cmp(hi) != 0 {
		b.Label = "[" + edge(lo) + ", " + edge(hi.Add(hi, one)) + ")"
	}
	return b, err
}

// edge formats a number with the largest suffix of powers of 1024 that divides
// it.
func edge(n *big.Int) string {
	k, unit := big.NewInt(1024), 0
	for v, rest := new(big.Int).Set(n), new(big.Int); n.Sign() != 0 && unit < 6; unit++ {
		if v.QuoRem(v, k, rest); rest.Sign() != 0 {
			break
		}
		n = new(big.Int).Set(v)
	}
	return n.String() + []string{"", "K", "M", "G", "T", "P", "E"}[unit]
}

// NewBucket returns a bucket of a histogram in a program's map, the last value
// included.
func NewBucket(first, last, count uint64) Bucket {
	return Bucket{At: float64(first), Label: fmt.Sprintf("[%d, %d]", first, last), Count: count}
}

// ParsePrintedNumbers reads the maps of numbers that bpftrace -f json prints, by
// the name of the map and the key. With stats, it also reads how many values
// each map of statistics has, under the map's name and " (count)". It skips
// everything else.
func ParsePrintedNumbers(data json.RawMessage, stats bool) (map[string]float64, error) {
	of, err := members(data)
	if err != nil {
		return nil, err
	}
	out := map[string]float64{}
	number := func(name, key string, v json.RawMessage) bool {
		var n float64
		var of struct{ Count *float64 }
		switch {
		case json.Unmarshal(v, &n) == nil:
		case stats && json.Unmarshal(v, &of) == nil && of.Count != nil:
			name, n = name+" (count)", *of.Count
		default:
			return false
		}
		out[name+key] = n
		return true
	}
	for name, v := range of {
		if number(name, "", v) {
			continue
		}
		keyed, _ := members(v) // a value that is not an object has none
		for key, v := range keyed {
			number(name, "["+key+"]", v)
		}
	}
	return out, nil
}
