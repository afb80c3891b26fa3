package devkong

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	pb "github.com/Kong/go-pdk/server/kong_plugin_protocol"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// exchange is one request on its way through the plugins, and what they have
// done to it.
type exchange struct {
	id         string
	request    *http.Request
	arrived    time.Time
	ip         string // the connection's
	forwarded  string // seen through trusted proxies
	route      *route
	service    *service
	prefix     string // what the route matched of the path
	consumer   *consumer
	credential *credential

	response http.Header // for the client, beside the upstream's
	upstream http.Header // the request's headers, as the upstream will get them
	shared   map[string]*structpb.Value
	calls    []string // the PDK calls, in order
	exit     *exit    // set when a plugin answered instead of the upstream
	log      func(msg string, args ...any)
}

type exit struct {
	status int
	body   []byte
}

// call answers a PDK call. Methods and messages are those of go-pdk's
// pluginsocket.proto; a missing string is an empty message.
func (x *exchange) call(method string, args []byte) ([]byte, error) {
	x.calls = append(x.calls, method)
	answer, known := answers[method]
	if !known {
		return nil, fmt.Errorf("method %q not found", method)
	}
	reply, err := answer(x, args)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", method, err)
	}
	if reply == nil {
		return nil, nil
	}
	return proto.Marshal(reply)
}

var answers map[string]func(x *exchange, args []byte) (proto.Message, error)

func init() {
	answers = map[string]func(x *exchange, args []byte) (proto.Message, error){
		"kong.client.get_consumer":          getConsumer,
		"kong.client.get_credential":        getCredential,
		"kong.client.get_ip":                text(func(x *exchange, _ string) string { return x.ip }),
		"kong.client.get_forwarded_ip":      text(func(x *exchange, _ string) string { return x.forwarded }),
		"kong.request.get_header":           text(func(x *exchange, name string) string { return x.header(name) }),
		"kong.request.get_headers":          getHeaders,
		"kong.request.get_method":           text(func(x *exchange, _ string) string { return x.request.Method }),
		"kong.request.get_path":             text(func(x *exchange, _ string) string { return x.request.URL.Path }),
		"kong.request.get_path_with_query":  text(func(x *exchange, _ string) string { return x.request.RequestURI }),
		"kong.request.get_raw_query":        text(func(x *exchange, _ string) string { return x.request.URL.RawQuery }),
		"kong.request.get_query_arg":        text(func(x *exchange, name string) string { return x.request.URL.Query().Get(name) }),
		"kong.request.get_host":             text(func(x *exchange, _ string) string { return hostname(x.request.Host) }),
		"kong.request.get_scheme":           text(func(*exchange, string) string { return "http" }),
		"kong.nginx.get_var":                text(func(x *exchange, name string) string { return x.variable(name) }),
		"kong.router.get_route":             getRoute,
		"kong.router.get_service":           getService,
		"kong.response.set_header":          setHeader(func(x *exchange) http.Header { return x.response }),
		"kong.response.add_header":          addHeader(func(x *exchange) http.Header { return x.response }),
		"kong.response.clear_header":        clearHeader(func(x *exchange) http.Header { return x.response }),
		"kong.response.set_headers":         setHeaders(func(x *exchange) http.Header { return x.response }),
		"kong.response.exit":                respond,
		"kong.service.request.set_header":   setHeader(func(x *exchange) http.Header { return x.upstream }),
		"kong.service.request.add_header":   addHeader(func(x *exchange) http.Header { return x.upstream }),
		"kong.service.request.clear_header": clearHeader(func(x *exchange) http.Header { return x.upstream }),
		"kong.service.request.set_headers":  setHeaders(func(x *exchange) http.Header { return x.upstream }),
		"kong.ctx.shared.set":               setShared,
		"kong.ctx.shared.get":               getShared,
		"kong.log.set_serialize_value":      setSerializeValue,
		"kong.nginx.req_start_time": func(x *exchange, _ []byte) (proto.Message, error) {
			return &pb.Number{V: float64(x.arrived.UnixMilli()) / 1000}, nil
		},
		"kong.request.get_http_version": func(x *exchange, _ []byte) (proto.Message, error) {
			return &pb.Number{V: float64(x.request.ProtoMajor) + float64(x.request.ProtoMinor)/10}, nil
		},
	}
	for _, level := range []string{"alert", "crit", "err", "warn", "notice", "info", "debug"} {
		answers["kong.log."+level] = logLine(level)
	}
}

// text makes an answer of a function from text to text.
func text(f func(x *exchange, arg string) string) func(*exchange, []byte) (proto.Message, error) {
	return func(x *exchange, args []byte) (proto.Message, error) {
		in := new(pb.String)
		if err := proto.Unmarshal(args, in); err != nil {
			return nil, err
		}
		return &pb.String{V: f(x, in.V)}, nil
	}
}

func getConsumer(x *exchange, _ []byte) (proto.Message, error) {
	if x.consumer == nil {
		return nil, nil
	}
	c := x.consumer
	return &pb.Consumer{Id: c.ID, CreatedAt: c.CreatedAt, Username: c.Username, CustomId: c.CustomID, Tags: c.Tags}, nil
}

func getCredential(x *exchange, _ []byte) (proto.Message, error) {
	if x.credential == nil {
		return nil, nil
	}
	return &pb.AuthenticatedCredential{Id: x.credential.ID}, nil
}

func getRoute(x *exchange, _ []byte) (proto.Message, error) {
	r := x.route
	return &pb.Route{
		Id: r.ID, CreatedAt: r.CreatedAt, UpdatedAt: r.UpdatedAt, Name: r.Name, Protocols: r.Protocols, Methods: r.Methods,
		Hosts: r.Hosts, Paths: r.Paths, HttpsRedirectStatusCode: int32(r.HTTPSRedirectCode), RegexPriority: int32(r.RegexPriority),
		StripPath: *r.StripPath, PreserveHost: r.PreserveHost, Tags: r.Tags, Service: &pb.ServiceKey{Id: string(r.Service)},
	}, nil
}

func getService(x *exchange, _ []byte) (proto.Message, error) {
	s := x.service
	return &pb.Service{
		Id: s.ID, CreatedAt: s.CreatedAt, UpdatedAt: s.UpdatedAt, Name: s.Name, Retries: int32(s.Retries), Protocol: s.Protocol,
		Host: s.Host, Port: int32(s.Port), Path: s.Path, ConnectTimeout: int32(s.ConnectTimeout),
		WriteTimeout: int32(s.WriteTimeout), ReadTimeout: int32(s.ReadTimeout), Tags: s.Tags,
	}, nil
}

func getHeaders(x *exchange, _ []byte) (proto.Message, error) {
	all := &structpb.Struct{Fields: map[string]*structpb.Value{"host": structpb.NewStringValue(x.request.Host)}}
	for name, values := range x.request.Header {
		if len(values) == 1 {
			all.Fields[strings.ToLower(name)] = structpb.NewStringValue(values[0])
			continue
		}
		list := &structpb.ListValue{}
		for _, v := range values {
			list.Values = append(list.Values, structpb.NewStringValue(v))
		}
		all.Fields[strings.ToLower(name)] = structpb.NewListValue(list)
	}
	return all, nil
}

func (x *exchange) header(name string) string {
	name = strings.ReplaceAll(name, "_", "-")
	if strings.EqualFold(name, "host") {
		return x.request.Host
	}
	return x.request.Header.Get(name)
}

// variable is the part of nginx' variables that plugins ask for.
func (x *exchange) variable(name string) string {
	if cookie, ok := strings.CutPrefix(name, "cookie_"); ok {
		if c, err := x.request.Cookie(cookie); err == nil {
			return c.Value
		}
		return ""
	}
	if arg, ok := strings.CutPrefix(name, "arg_"); ok {
		return x.request.URL.Query().Get(arg)
	}
	if header, ok := strings.CutPrefix(name, "http_"); ok {
		return x.header(header)
	}
	switch name {
	case "remote_addr": // as nginx has it behind its realip module
		return x.forwarded
	case "request_method":
		return x.request.Method
	case "request_uri":
		return x.request.RequestURI
	case "uri":
		return x.request.URL.Path
	case "host":
		return hostname(x.request.Host)
	case "content_type":
		return x.header("content-type")
	case "request_id":
		return x.id
	}
	return ""
}

func hostname(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return host
}

func setHeader(of func(*exchange) http.Header) func(*exchange, []byte) (proto.Message, error) {
	return keyValue(func(x *exchange, k string, v *structpb.Value) { put(of(x), k, v) })
}

func addHeader(of func(*exchange) http.Header) func(*exchange, []byte) (proto.Message, error) {
	return keyValue(func(x *exchange, k string, v *structpb.Value) {
		for _, value := range texts(v) {
			of(x).Add(k, value)
		}
	})
}

func keyValue(f func(x *exchange, k string, v *structpb.Value)) func(*exchange, []byte) (proto.Message, error) {
	return func(x *exchange, args []byte) (proto.Message, error) {
		kv := new(pb.KV)
		if err := proto.Unmarshal(args, kv); err != nil {
			return nil, err
		}
		f(x, kv.K, kv.V)
		return nil, nil
	}
}

func clearHeader(of func(*exchange) http.Header) func(*exchange, []byte) (proto.Message, error) {
	return func(x *exchange, args []byte) (proto.Message, error) {
		name := new(pb.String)
		if err := proto.Unmarshal(args, name); err != nil {
			return nil, err
		}
		of(x).Del(name.V)
		return nil, nil
	}
}

func setHeaders(of func(*exchange) http.Header) func(*exchange, []byte) (proto.Message, error) {
	return func(x *exchange, args []byte) (proto.Message, error) {
		all := new(structpb.Struct)
		if err := proto.Unmarshal(args, all); err != nil {
			return nil, err
		}
		for name, value := range all.Fields {
			put(of(x), name, value)
		}
		return nil, nil
	}
}

// put replaces a header; a list without values removes it, as in OpenResty.
func put(h http.Header, name string, value *structpb.Value) {
	h.Del(name)
	for _, v := range texts(value) {
		h.Add(name, v)
	}
}

func texts(value *structpb.Value) []string {
	switch v := value.GetKind().(type) {
	case *structpb.Value_ListValue:
		var all []string
		for _, item := range v.ListValue.GetValues() {
			all = append(all, texts(item)...)
		}
		return all
	case *structpb.Value_NumberValue:
		return []string{strconv.FormatFloat(v.NumberValue, 'g', 14, 64)}
	case *structpb.Value_BoolValue:
		return []string{strconv.FormatBool(v.BoolValue)}
	default:
		return []string{value.GetStringValue()}
	}
}

func setShared(x *exchange, args []byte) (proto.Message, error) {
	return keyValue(func(x *exchange, k string, v *structpb.Value) { x.shared[k] = v })(x, args)
}

func getShared(x *exchange, args []byte) (proto.Message, error) {
	name := new(pb.String)
	if err := proto.Unmarshal(args, name); err != nil {
		return nil, err
	}
	if v := x.shared[name.V]; v != nil {
		return v, nil
	}
	return structpb.NewNullValue(), nil
}

func setSerializeValue(x *exchange, args []byte) (proto.Message, error) {
	return keyValue(func(x *exchange, k string, v *structpb.Value) { x.log("log value", "name", k, "value", v.String()) })(x, args)
}

func logLine(level string) func(*exchange, []byte) (proto.Message, error) {
	return func(x *exchange, args []byte) (proto.Message, error) {
		list := new(structpb.ListValue)
		if err := proto.Unmarshal(args, list); err != nil {
			return nil, err
		}
		x.log(strings.Join(texts(structpb.NewListValue(list)), ""), "level", level, "from", "plugin")
		return nil, nil
	}
}

const grpcType = "application/grpc"

// grpcStatuses are Kong's, for the HTTP statuses that have one of their own.
var grpcStatuses = map[int]int{200: 0, 400: 3, 401: 16, 403: 7, 404: 5, 409: 6, 429: 8, 499: 1, 500: 13, 501: 12, 503: 14, 504: 4}

// respond is kong.response.exit. An answer to gRPC gets a grpc-status: by the
// Content-Type of the answer if it has one, else by that of an HTTP/2 request.
func respond(x *exchange, args []byte) (proto.Message, error) {
	in := new(pb.ExitArgs)
	if err := proto.Unmarshal(args, in); err != nil {
		return nil, err
	}
	if in.Status < 100 || in.Status > 599 {
		return nil, errors.New("code must be a number between 100 and 599")
	}
	for name, value := range in.Headers.GetFields() {
		if !strings.EqualFold(name, "transfer-encoding") {
			put(x.response, name, value)
		}
	}
	body := in.Body
	contentType := x.response.Get("Content-Type")
	grpcOutput := strings.HasPrefix(contentType, grpcType)
	grpc := grpcOutput
	if contentType == "" {
		grpc = x.request.ProtoMajor == 2 && strings.HasPrefix(x.header("content-type"), grpcType)
	}
	if grpc && x.response.Get("Grpc-Status") == "" {
		x.response.Set("Grpc-Status", strconv.Itoa(grpcStatus(int(in.Status))))
	}
	if grpc && !grpcOutput && body != nil {
		x.response.Set("Grpc-Message", string(body))
		body = nil
	}
	x.exit = &exit{int(in.Status), body}
	return nil, errExited
}

func grpcStatus(status int) int {
	if code, ok := grpcStatuses[status]; ok {
		return code
	}
	switch status / 100 {
	case 5:
		return grpcStatuses[500]
	case 4:
		return grpcStatuses[400]
	case 2:
		return grpcStatuses[200]
	}
	return 2
}
