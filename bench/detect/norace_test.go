//go:build !race

package detect_test

const raceDetector = false
