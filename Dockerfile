# syntax=docker/dockerfile:1
# The images of kong-quota.
#   docker build --target plugin -t kong-quota/plugin .   the plugin server alone, for init containers and sidecars
#   docker build --target tools -t kong-quota/tools .     quotactl
#   docker build --target kong -t kong-quota/kong .       Kong with the plugin (the default)
#   docker buildx build --platform linux/amd64,linux/arm64 …   for several machines
# Equal sources give equal binaries, on every machine; so do images, if --build-arg
# SOURCE_DATE_EPOCH=… is given.
ARG GO_IMAGE=golang:1.26
ARG KONG_IMAGE=kong:3.9

# Go compiles for other machines itself: nothing is emulated.
# hadolint ignore=DL3029
FROM --platform=$BUILDPLATFORM ${GO_IMAGE} AS build
ARG TARGETOS=linux
ARG TARGETARCH=amd64
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=${TARGETOS} GOARCH=${TARGETARCH} \
    go build -trimpath -buildvcs=false -ldflags="-s -w -buildid=" -o /out/ . ./cmd/quotactl && \
    mv /out/kong-quota /out/quota

# What the two small images have in common.
FROM scratch AS static
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.vendor="kong-quota"
# To verify the certificate of Redis.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
USER 65532:65532

FROM static AS plugin
LABEL org.opencontainers.image.title="kong-quota plugin" \
      org.opencontainers.image.description="The plugin server of kong-quota, and nothing else"
# The plugin's name is the name of its executable.
COPY --from=build /out/quota /quota
ENTRYPOINT ["/quota"]

FROM static AS tools
LABEL org.opencontainers.image.title="kong-quota tools" \
      org.opencontainers.image.description="quotactl: check quotas, see what is used, give it back"
COPY --from=build /out/quotactl /quotactl
ENTRYPOINT ["/quotactl"]

FROM ${KONG_IMAGE} AS kong
ARG VERSION=0.1.0
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="kong-quota" \
      org.opencontainers.image.description="Kong Gateway with per-consumer quotas, decided atomically in Redis" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.vendor="kong-quota"
COPY --from=build /out/quota /usr/local/bin/quota
COPY build/quota.env /etc/kong-quota/quota.env
ENV KONG_PLUGINS=bundled,quota \
    KONG_PLUGINSERVER_NAMES=quota \
    KONG_PLUGINSERVER_QUOTA_SOCKET=/usr/local/kong/quota.socket \
    KONG_PLUGINSERVER_QUOTA_QUERY_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -dump" \
    KONG_PLUGINSERVER_QUOTA_START_CMD="/usr/local/bin/quota -kong-prefix /usr/local/kong -env-file /etc/kong-quota/quota.env"
USER kong
