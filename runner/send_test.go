package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"multistep.dev/runner/internal/send"
	"multistep.dev/runner/internal/wire"
)

// storeAt starts an HTTP server in place of an object store, and returns the presigned URL of an object.
func storeAt(t *testing.T, answer http.HandlerFunc) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: answer}
	go server.Serve(listener)
	t.Cleanup(func() { server.Close() })
	return "http://" + listener.Addr().String() + "/bucket/object?signature=secret"
}

func fileOf(t *testing.T, data []byte) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	check(os.WriteFile(name, data, 0o600))
	file, err := os.Open(name)
	check(err)
	t.Cleanup(func() { file.Close() })
	return file
}

func sendTo(url string, size int64) wire.Send {
	return wire.Send{Size: size, URL: url, TimeoutSeconds: 20, Headers: map[string]string{"x-kind": "BlockBlob"}}
}

func TestAFileIsSentWholeWithItsDigest(t *testing.T) {
	data := make([]byte, 3<<20)
	rand.Read(data)
	got := make(chan []byte, 1)
	url := storeAt(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if r.Method != "PUT" || r.ContentLength != int64(len(data)) || r.Header.Get("x-kind") != "BlockBlob" {
			t.Errorf("%s of %d bytes, %v", r.Method, r.ContentLength, r.Header)
		}
		w.Header().Set("ETag", `"the-version"`)
		got <- body
	})
	result := send.Run(sendTo(url, int64(len(data))), fileOf(t, data))
	sum := sha256.Sum256(data)
	if result.Error != nil || result.Size != int64(len(data)) || result.SHA256 != hex.EncodeToString(sum[:]) || result.Version != `"the-version"` {
		t.Errorf("%+v", result)
	}
	if !bytes.Equal(<-got, data) {
		t.Error("something else arrived")
	}
}

func TestNoErrorContainsTheAddress(t *testing.T) {
	refusing := storeAt(t, func(w http.ResponseWriter, r *http.Request) {
		http.Error(w, "you sent "+r.URL.String(), http.StatusForbidden)
	})
	elsewhere := storeAt(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://127.0.0.1:1/?signature=secret", http.StatusTemporaryRedirect)
	})
	for what, url := range map[string]string{
		"refused": refusing, "redirected": elsewhere, "no such host": "http://nowhere.invalid/?signature=secret",
		"nonsense": "http://[secret", "no http": "file:///etc/passwd?signature=secret",
	} {
		result := send.Run(wire.Send{URL: url, Size: 1, TimeoutSeconds: 1}, fileOf(t, []byte("x")))
		if result.Error == nil || strings.Contains(result.Error.Message, "secret") {
			t.Errorf("%s: %+v", what, result.Error)
		}
	}
}

func TestATransientErrorIsRetriedFromTheStart(t *testing.T) {
	var asked atomic.Int32
	url := storeAt(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if string(body) != "all of it" {
			t.Errorf("%q", body)
		}
		if asked.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	if result := send.Run(sendTo(url, 9), fileOf(t, []byte("all of it"))); result.Error != nil || asked.Load() != 2 {
		t.Errorf("%+v after %d", result.Error, asked.Load())
	}
}

func TestAFileThatShrankIsNotSentAsIfItWereWhole(t *testing.T) {
	url := storeAt(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) })
	result := send.Run(sendTo(url, 100), fileOf(t, []byte("short")))
	if result.Error == nil || !strings.Contains(result.Error.Message, "smaller") {
		t.Errorf("%+v", result)
	}
}

func TestOnlyTheCertificatesThatAreNamedAreBelieved(t *testing.T) {
	result := send.Run(wire.Send{URL: "https://127.0.0.1:1/", CA: "no certificate", TimeoutSeconds: 1}, fileOf(t, nil))
	if result.Error == nil || !strings.Contains(result.Error.Message, "ca has no certificate") {
		t.Errorf("%+v", result)
	}
}

func TestLargeFilesAreFoundAndSentAndReportedWithoutTheirContents(t *testing.T) {
	c := launch(t)
	s := c.connect()
	s.shell("mkdir -p /w/d/deep /w/out; head -c 3000 /dev/zero > /w/d/deep/big; printf small > /w/d/small; head -c 3000 /dev/zero | tr '\\0' x > /w/d/text; "+
		"ln -s /w/d/deep/big /w/d/link; head -c 3000 /dev/zero > /w/d/skip.log; head -c 3000 /dev/zero > /w/file; head -c 3000 /dev/zero > $'/w/d/no\\xff'", nil)
	sources := []object{{"path": "/w/d", "exclude": []string{"*.log"}}, {"path": "/w/file", "exclude": []string{}}, {"path": "/w/none", "exclude": []string{}}}
	answer := s.ask(object{"op": "survey", "sources": sources, "minBytes": 3000, "limit": 10})
	found := map[string]bool{}
	for _, each := range answer["files"].([]any) {
		file := each.(object)
		found[fmt.Sprintf("%v %v %v %v", file["source"], file["path"], file["size"], file["binary"])] = true
	}
	if len(found) != 3 || !found["0 deep/big 3000 true"] || !found["0 text 3000 false"] || !found["1  3000 true"] {
		t.Errorf("%v", answer)
	}
	limited := s.ask(object{"op": "survey", "sources": sources, "minBytes": 3000, "limit": 1})
	if len(limited["files"].([]any)) != 1 {
		t.Errorf("%v", limited)
	}

	sent := s.record(object{"op": "send", "id": "1/a/collect-send-0", "source": "/w/d", "path": "deep/none", "size": 3000, "url": "http://127.0.0.1:1/?secret", "timeoutSeconds": 1})
	result := s.result(sent["id"].(string))
	if errorCode(result) != "Send" {
		t.Errorf("%v", result)
	}
	if hello := c.connectSilently().ask(object{"op": "hello", "protocols": []int{1}}); strings.Contains(fmt.Sprint(hello["records"]), "collect-send") {
		t.Errorf("a caller of protocol 1 received %v", hello["records"])
	}
	if hello := c.connectSilently().ask(object{"op": "hello", "protocols": []int{2}}); !strings.Contains(fmt.Sprint(hello["records"]), "collect-send") || strings.Contains(fmt.Sprint(hello), "secret") {
		t.Errorf("%v", hello["records"])
	}

	sources[0]["sent"], sources[1]["sent"] = []string{"deep/big"}, []string{""}
	_, members, _ := s.download(sources...)
	for _, want := range []string{"0/deep/big", "1"} {
		if !slices.Contains(members, want+" 644 ") {
			t.Errorf("%s does not exist without contents", want)
		}
	}
	if !slices.Contains(members, "0/small 644 small") || !slices.Contains(members, "0/text 644 "+strings.Repeat("x", 3000)) {
		t.Error("what was not sent has to come")
	}
}
