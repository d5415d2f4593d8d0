//go:build race

package detect_test

const raceDetector = true
