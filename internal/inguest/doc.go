// Package inguest runs compiled programs inside a small guest of its own, at
// either privilege.
package inguest
