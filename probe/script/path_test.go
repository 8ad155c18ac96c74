package script

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/types"
)

// TestPath: what types and parts of them mean, as C has it.
func TestPath(t *testing.T) {
	for text, want := range map[string]string{
		"struct file": "struct file, 128 bytes at [0]",
		"file":        "struct file, 128 bytes at [0]", // because there is no type of that name without a tag
		"enum kind":   "enum kind, 4 bytes at [0]",
		"loff_t":      "loff_t, 8 bytes at [0]",
		"u8":          "u8, 1 bytes at [0]",
		"size_t[2]":   "size_t [2], 16 bytes at [0]",

		"unsigned long": "unsigned long, 8 bytes at [0]", "long unsigned": "unsigned long, 8 bytes at [0]", "long unsigned int": "unsigned long, 8 bytes at [0]",
		"int long unsigned long": "unsigned long long, 8 bytes at [0]", "long": "long, 8 bytes at [0]", "int const long volatile": "long, 8 bytes at [0]",
		"char unsigned": "unsigned char, 1 bytes at [0]", "signed": "signed, 4 bytes at [0]", "short int": "short, 2 bytes at [0]", "int unsigned short": "unsigned short, 2 bytes at [0]",
		"double long": "long double, 16 bytes at [0]", "float": "float, 4 bytes at [0]", "__int128 unsigned": "unsigned __int128, 16 bytes at [0]",

		"struct file *":         "struct file *, 8 bytes at [0]",
		"const char *const *":   "char **, 8 bytes at [0]",
		"int[3]":                "int [3], 12 bytes at [0]",
		"unsigned long[2][3]":   "unsigned long [2][3], 48 bytes at [0]",
		"struct file *[4]":      "struct file *[4], 32 bytes at [0]",
		" struct\tfile\n":       "struct file, 128 bytes at [0]",
		"struct file . f_path ": "struct path, 16 bytes at [64]",

		"struct file.f_path.dentry":                      "struct dentry *, 8 bytes at [72]",
		"struct file.f_path.dentry->d_name.len":          "unsigned int, 4 bytes at [72 36]",
		"struct file.f_path.dentry.d_name.len":           "unsigned int, 4 bytes at [72 36]",
		"struct file.f_path.dentry->d_iname[5]":          "unsigned char, 1 bytes at [72 61]",
		"struct file.f_path.dentry[2].d_parent->d_flags": "unsigned int, 4 bytes at [72 232 0]",
		"struct dentry *->d_name.name[3]":                "const unsigned char, 1 bytes at [0 40 3]",
		"struct file.across":                             "unsigned int, 5 bytes at [97]",
		"struct file.low":                                "int, 1 bytes at [96]",
		"struct file.beyond":                             "long unsigned int, 9 bytes at [112]",
	} {
		p, err := ParsePath(text, kernelTypes)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := fmt.Sprintf("%s, %d bytes at %d", types.Text(p.Type), p.Size, p.Steps); got != want {
			t.Errorf("%s is %s, want %s", text, got, want)
		}
	}
}

// TestPathRefused: the error, its place, and the suggestion; with "?" in front of a
// name that does not exist.
func TestPathRefused(t *testing.T) {
	for text, want := range map[string]string{
		"struct fil":                  `?1-11 Cannot resolve unknown type "struct fil" (did you mean struct file?)`,
		"loff_":                       `?1-6 Cannot resolve unknown type "loff_" (did you mean loff_t?)`,
		"unsigned nothing":            `10-17 syntax error, unexpected "nothing", expecting a member or an element`,
		"long char":                   `1-10 Cannot resolve unknown type "long char" (write uint8 to uint64, or int8 to int64)`,
		"unsigned float":              `1-15 Cannot resolve unknown type "unsigned float" (write uint8 to uint64, or int8 to int64)`,
		"long long long":              `1-15 Cannot resolve unknown type "long long long" (write uint8 to uint64, or int8 to int64)`,
		"struct file.f_pos.x":         `?19-20 loff_t is no structure`,
		"struct file.f_poss":          `?13-19 struct file has no member "f_poss" (did you mean f_pos?)`,
		"struct file.f_path.mnt->x":   `?25-26 the guest's types have of struct vfsmount its name only`,
		"struct file.f_path.mnt[1]":   `24-25 elements of struct vfsmount * have no size`,
		"struct file.private_data[1]": `26-27 elements of void * have no size`,
		"struct dentry.d_iname[40]":   `23-25 the index 40 is out of bounds for array of size 40`,
		"struct dentry.d_iname[-1]":   `23-24 an index is a number from 0 to 4294967295`,
		"struct dentry.d_iname[1":     `24-25 syntax error, unexpected end of the type, expecting "]"`,
		"struct dentry.d_flags[1]":    `23-24 unsigned int has no elements`,
		"struct dentry.":              `15-16 syntax error, unexpected end of the type, expecting a member`,
		"struct":                      `7-8 syntax error, unexpected end of the type, expecting a name`,
		"struct\r":                    `7-8 syntax error, unexpected end of the type, expecting a name`,
		"":                            `1-2 syntax error, unexpected end of the type, expecting a type`,
		"typeof(1 + 1)":               `1-7 typeof() is of expressions, which a script has`,
		"int[99999]":                  `5-10 an array has a number of elements from 0 to 65536`,
		"int €":                       `5-8 invalid character '€'`,
		"struct dentry" + strings.Repeat(".d_parent", 65) + ".d_flags": `600-607 more than 64 pointers`,
		strings.Repeat("x", maxPath+1):                                 `1-2 a type of 4097 bytes: at most 4096`,
	} {
		_, err := ParsePath(text, kernelTypes)
		var e *Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", text, err)
			continue
		}
		got := fmt.Sprintf("%d-%d %s", e.Col, e.End, e.Message)
		if e.Unknown {
			got = "?" + got
		}
		if e.Hint != "" {
			got += " (" + e.Hint + ")"
		}
		if got != want || !strings.HasPrefix(err.Error(), "type:1:") {
			t.Errorf("%.100q: %s, want %s: %v", text, got, want, err)
		}
	}
}

// TestSpelled: each order of the words of a type of C is that type, and nothing else is one.
func TestSpelled(t *testing.T) {
	valid := map[string]string{} // sorted words, and the type (C11, 6.7.2)
	for _, line := range []string{
		"char", "signed char", "unsigned char", "short: short int, signed short, signed short int", "unsigned short: unsigned short int", "int: signed, signed int", "unsigned: unsigned int",
		"long: long int, signed long, signed long int", "unsigned long: unsigned long int", "long long: long long int, signed long long, signed long long int", "unsigned long long: unsigned long long int",
		"float", "double", "long double", "__int128: signed __int128", "unsigned __int128",
	} {
		name, same, _ := strings.Cut(line, ": ")
		for _, s := range append(strings.Split(same, ", "), name) {
			words := strings.Fields(s)
			slices.Sort(words)
			valid[strings.Join(words, " ")] = name
		}
	}
	delete(valid, "")
	found := map[string]bool{}
	var all func(words []string)
	all = func(words []string) {
		sorted := slices.Sorted(slices.Values(words))
		want, ok := cNumbers[valid[strings.Join(sorted, " ")]]
		got := typeOfWords(words)
		if ok != (got != nil) {
			t.Errorf("%q is %v, want %v", words, got, want)
		} else if ok {
			found[strings.Join(sorted, " ")] = true
			gs, _ := types.Size(got)
			ws, _ := types.Size(want)
			if gs != ws || fromC(got).Signed != fromC(want).Signed {
				t.Errorf("%q is %v, want %v", words, got, want)
			}
		}
		if len(words) < 5 {
			for _, w := range cWords {
				all(append(slices.Clone(words), w))
			}
		}
	}
	all(nil)
	if len(found) != len(valid) {
		t.Errorf("%d types of %d were there", len(found), len(valid))
	}
}

// FuzzPath parses random text as a path, and prints a value of random bytes if it is
// one: neither panics, and errors point into the text.
func FuzzPath(f *testing.F) {
	for _, text := range []string{
		"struct file.f_path.dentry->d_iname[3]", "unsigned long long int", "const struct dentry *const *[2][3]", "qstr.len", "long double[2]", "struct file.beyond", "__int128 unsigned", "typeof(struct file)", "enum kind",
	} {
		f.Add(text, []byte("0123456789abcdef"))
	}
	f.Fuzz(func(t *testing.T, text string, data []byte) {
		p, err := ParsePath(text, kernelTypes)
		if err != nil {
			var e *Error
			if !errors.As(err, &e) || e.Error() == "" || e.Line < 1 || e.Col < 1 || e.Mark > len(e.Source) || e.Message == "" || !strings.Contains(text, strings.TrimSuffix(strings.TrimPrefix(e.Source, cut), cut)) {
				t.Fatalf("%q: error %+v", text, err)
			}
			return
		}
		if len(p.Steps) == 0 || len(p.Steps) > maxFollowed+1 {
			t.Fatalf("%q: %d steps", text, len(p.Steps))
		}
		p.Text(data, func(uint64) string { return "x" })
		p.JSON(data)
	})
}
