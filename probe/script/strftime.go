package script

import (
	"fmt"
	"strings"
	"time"
)

// strftime prints a time as C's function of that name does in the C locale (ISO C,
// 7.27.3.5, and POSIX), and %f as microseconds. Text that is not a conversion is
// copied.
func strftime(format string, t time.Time) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		if c := format[i]; (c == 'E' || c == 'O') && i+1 < len(format) { // of other locales
			i++
		}
		b.WriteString(conversion(format[i], t))
	}
	return b.String()
}

// layouts are the conversions that package time has.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'h': "Jan", 'c': "Mon Jan _2 15:04:05 2006", 'd': "02", 'D': "01/02/06", 'e': "_2",
	'F': "2006-01-02", 'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'P': "pm", 'r': "03:04:05 PM", 'R': "15:04",
	'S': "05", 'T': "15:04:05", 'x': "01/02/06", 'X': "15:04:05", 'y': "06", 'Y': "2006", 'z': "-0700", 'Z': "MST",
}

func conversion(c byte, t time.Time) string {
	if l, ok := layouts[c]; ok {
		return t.Format(l)
	}
	year, week := t.ISOWeek()
	// Weeks begin with a day of the week, and are counted from the first such day.
	weeks := func(first time.Weekday) int { return (t.YearDay() + 6 - (int(t.Weekday()-first)+7)%7) / 7 }
	switch c {
	case 'C':
		return fmt.Sprintf("%02d", t.Year()/100)
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000)
	case 'g':
		return fmt.Sprintf("%02d", year%100)
	case 'G':
		return fmt.Sprint(year)
	case 'k':
		return fmt.Sprintf("%2d", t.Hour())
	case 'l':
		return fmt.Sprintf("%2d", (t.Hour()+11)%12+1)
	case 'n':
		return "\n"
	case 's':
		return fmt.Sprint(t.Unix())
	case 't':
		return "\t"
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1)
	case 'U':
		return fmt.Sprintf("%02d", weeks(time.Sunday))
	case 'V':
		return fmt.Sprintf("%02d", week)
	case 'w':
		return fmt.Sprint(int(t.Weekday()))
	case 'W':
		return fmt.Sprintf("%02d", weeks(time.Monday))
	case '%':
		return "%"
	}
	return "%" + string(c)
}
