package send

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"multistep.dev/runner/internal/wire"
)

const (
	connectTimeout = 10 * time.Second
	answerTimeout  = 5 * time.Minute // a store may check the whole object before it responds
	tries          = 3
	bufferBytes    = 256 << 10
)

var pause = time.Second // pause before a retry, multiplied by the number of failed attempts

// Run sends the first request.Size bytes of the file in one PUT request. It retries transient errors until the timeout.
func Run(request wire.Send, file *os.File) wire.SendResult {
	ctx, cancel := context.WithTimeout(context.Background(), wire.Seconds(request.TimeoutSeconds))
	defer cancel()
	client, err := newClient(request.CA)
	if err != nil {
		return failed(err)
	}
	defer client.CloseIdleConnections()
	for attempt := 1; ; attempt++ {
		result, passing, err := put(ctx, client, request, file)
		if err == nil {
			return result
		}
		if !passing || attempt == tries || ctx.Err() != nil {
			return failed(err)
		}
		time.Sleep(time.Duration(attempt) * pause)
	}
}

func failed(err error) wire.SendResult {
	return wire.SendResult{Error: wire.Errorf("Send", "%v", err)}
}

// newClient returns a client that ignores proxy variables, which the image may set. It follows no redirects, because the URL is
// signed.
func newClient(ca string) (*http.Client, error) {
	dialer := net.Dialer{Timeout: connectTimeout}
	transport := &http.Transport{
		DialContext: dialer.DialContext, TLSHandshakeTimeout: connectTimeout, ResponseHeaderTimeout: answerTimeout,
		WriteBufferSize: bufferBytes, ForceAttemptHTTP2: false,
	}
	if ca != "" {
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM([]byte(ca)) {
			return nil, errors.New("ca has no certificate in it")
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, CheckRedirect: stay}, nil
}

func put(ctx context.Context, client *http.Client, request wire.Send, file *os.File) (wire.SendResult, bool, error) {
	digest := sha256.New()
	counted := &counter{reader: io.TeeReader(io.NewSectionReader(file, 0, request.Size), digest)}
	message, err := http.NewRequestWithContext(ctx, http.MethodPut, request.URL, counted)
	if err != nil {
		return wire.SendResult{}, false, errors.New("the upload URL is invalid")
	}
	message.ContentLength = request.Size
	for name, value := range request.Headers {
		message.Header.Set(name, value)
	}
	answer, err := client.Do(message)
	if counted.size < request.Size && counted.ended {
		return wire.SendResult{}, false, fmt.Errorf("the file has become smaller than %d bytes", request.Size)
	}
	if err != nil {
		var urlError *url.Error // the message of a url.Error contains the URL
		if errors.As(err, &urlError) {
			err = urlError.Err
		}
		return wire.SendResult{}, true, err
	}
	defer answer.Body.Close()
	io.CopyN(io.Discard, answer.Body, 64<<10)
	if answer.StatusCode/100 != 2 { // the error leaves out the response body, which may contain parts of the URL
		return wire.SendResult{}, answer.StatusCode >= 500, fmt.Errorf("the store answered %d", answer.StatusCode)
	}
	sum := hex.EncodeToString(digest.Sum(nil))
	return wire.SendResult{Size: counted.size, SHA256: sum, Version: wire.Cut(answer.Header.Get("ETag"), 256)}, false, nil
}

// counter counts the bytes read from reader, and records whether a read returned io.EOF or another error.
type counter struct {
	reader io.Reader
	size   int64
	ended  bool
}

func (c *counter) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	c.size += int64(n)
	c.ended = c.ended || err != nil
	return n, err
}
