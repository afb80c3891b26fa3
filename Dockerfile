# Kong with the quota plugin.
#   docker build -t kong-quota .
#   docker build --build-arg KONG_IMAGE=kong/kong-gateway:3.9 -t kong-quota .
ARG GO_IMAGE=golang:1.26
ARG KONG_IMAGE=kong:3.9

FROM ${GO_IMAGE} AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags="-s -w -buildid=" -o /out/quota .

FROM ${KONG_IMAGE}
LABEL org.opencontainers.image.title="kong-quota" \
      org.opencontainers.image.description="Kong Gateway with per-consumer quotas, decided atomically in Redis"
# The plugin's name is the name of its executable.
COPY --from=build /out/quota /usr/local/bin/quota
COPY build/quota.env /etc/kong-quota/quota.env
ENV KONG_PLUGINS=bundled,quota \
    KONG_PLUGINSERVER_NAMES=quota \
    KONG_PLUGINSERVER_QUOTA_SOCKET=/usr/local/kong/quota.socket \
    KONG_PLUGINSERVER_QUOTA_QUERY_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -dump" \
    KONG_PLUGINSERVER_QUOTA_START_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -env-file /etc/kong-quota/quota.env"
USER kong
