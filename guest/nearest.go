package guest

import (
	"iter"
	"math/bits"
)

// Nearest returns the name that is most similar to a wrong one, or "" if none is similar:
// for messages that suggest a name. Of several it is the first in alphabetical order. A name
// is similar if at most a third of the wrong one's bytes, or one, have to be changed,
// inserted, removed or swapped with the next one. Any goroutine may call it.
func Nearest(wrong string, names iter.Seq[string]) string {
	best, least := "", 1+max(len(wrong)/3, 1)
	var d editDistance
	letters := lettersOf(wrong)
	for n := range names {
		if differ := len(n) - len(wrong); n == "" || differ > least || -differ > least {
			continue
		}
		// One edit adds a letter, removes one, or both.
		if bits.OnesCount64(letters^lettersOf(n)) > 2*least {
			continue
		}
		if x := d.measure(wrong, n, least); x < least || x == least && best != "" && n < best {
			best, least = n, x
		}
	}
	return best
}

// lettersOf returns the set of a name's bytes, modulo 64.
func lettersOf(name string) (set uint64) {
	for i := range len(name) {
		set |= 1 << (name[i] & 63)
	}
	return set
}

// SymbolAdvice suggests the symbol whose name is most similar to a wrong one, in a question;
// "" if none is similar.
func SymbolAdvice(wrong string, symbols []Symbol) string {
	near := Nearest(wrong, func(yield func(string) bool) {
		for i := range symbols {
			if !yield(symbols[i].Name) {
				return
			}
		}
	})
	if near == "" {
		return ""
	}
	return "did you mean " + near + "?"
}

// editDistance counts how many bytes differ between names, and reuses its memory.
type editDistance struct{ rows [3][]int }

// measure returns how many bytes have to be changed, inserted, removed or swapped with the next
// one to turn a into b, or any number above most if it is more than most.
func (d *editDistance) measure(a, b string, most int) int {
	for i := range d.rows {
		if cap(d.rows[i]) <= len(b) {
			d.rows[i] = make([]int, 2*len(b)+1)
		}
		d.rows[i] = d.rows[i][:len(b)+1]
	}
	for i := range len(a) + 1 {
		row, prev, before := d.rows[i%3], d.rows[(i+2)%3], d.rows[(i+1)%3]
		least := i
		for j := range len(b) + 1 {
			switch {
			case i == 0:
				row[j] = j
			case j == 0:
				row[j] = i
			case a[i-1] == b[j-1]:
				row[j] = prev[j-1]
			default:
				row[j] = 1 + min(prev[j-1], prev[j], row[j-1])
			}
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], 1+before[j-2])
			}
			least = min(least, row[j])
		}
		if least > most+1 { // a swap looks two rows back
			return most + 1
		}
	}
	return d.rows[len(a)%3][len(b)]
}
