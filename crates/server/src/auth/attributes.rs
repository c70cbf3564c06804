//! Authorization attributes of requests: a verb on a subresource of the node.

use http::{Method, Request, header};
use vk_provider::placement::TOKEN_AUDIENCE;

/// The permissions that a request needs: the verb on any of the subresources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestAttributes {
    /// The verb.
    pub verb: &'static str,
    /// Subresources of `nodes`, narrowest first. Permission for one of them is enough.
    pub subresources: Vec<&'static str>,
}

/// Paths with their own subresource. Those with `true` also accept `nodes/proxy`, as in the kubelet; the others never did.
///
/// The kubelet checks `/containerLogs` with `proxy` only. Here `nodes/log` suffices: it grants access to the node's log files,
/// which include container logs on a real node.
///
/// `/placement` is not the kubelet's. It has its own subresource, so that the placement of pods may ask nodes and do nothing else with them,
/// and that who may reach into pods does not thereby see what the backend has.
const SUBRESOURCES: [(&str, &str, bool); 10] = [
    ("/pods", "pods", true),
    ("/runningpods", "pods", true),
    ("/healthz", "healthz", true),
    ("/configz", "configz", true),
    ("/containerLogs", "log", true),
    ("/stats", "stats", false),
    ("/metrics", "metrics", false),
    ("/logs", "log", false),
    ("/checkpoint", "checkpoint", false),
    ("/placement", PLACEMENT, false),
];

/// The subresource of questions of the placement of pods.
const PLACEMENT: &str = "placement";

/// Paths that run something in containers or connect to them. They always need `create`, whatever the method: a WebSocket begins
/// with GET, and the kubelet's `get nodes/proxy` for it lets readers run commands.
const EXEC_PATHS: [&str; 4] = ["/exec", "/attach", "/run", "/portForward"];

// === impl RequestAttributes ===

impl RequestAttributes {
    /// The attributes of a request, by its literal path, which also selects the route.
    pub fn from_request<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let route_entry = SUBRESOURCES.iter().find(|(route, ..)| within(path, route));
        let is_exec = EXEC_PATHS.iter().any(|route| within(path, route));
        let verb = match *request.method() {
            _ if is_exec || request.headers().contains_key(header::UPGRADE) => "create",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            // Only for users who may do everything.
            _ => "*",
        };
        let subresources = match route_entry {
            Some((_, own, true)) => vec![*own, "proxy"],
            Some((_, own, false)) => vec![*own],
            None => vec!["proxy"],
        };
        Self { verb, subresources }
    }

    /// The audience of tokens that authenticate this request and no others, if there is one. Tokens for the API server do, too.
    ///
    /// Only `nodes/placement` has one: a request that other permissions would open needs a token for the API server, as in a kubelet.
    pub fn token_audience(&self) -> Option<&'static str> {
        (self.subresources == [PLACEMENT]).then_some(TOKEN_AUDIENCE)
    }

    /// The kubelet's error message.
    pub fn forbidden_message(&self, user: &str) -> String {
        format!(
            "Forbidden (user={user}, verb={}, resource=nodes, subresource(s)=[{}])\n",
            self.verb,
            self.subresources.join(" ")
        )
    }
}

fn within(path: &str, route: &str) -> bool {
    path.strip_prefix(route).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, path: &str, upgrade: bool) -> (&'static str, String) {
        let mut request = Request::builder().method(method).uri(path);
        if upgrade {
            request = request.header("Upgrade", "websocket").header("Connection", "Upgrade");
        }
        let attributes = RequestAttributes::from_request(&request.body(()).unwrap());
        (attributes.verb, attributes.subresources.join(","))
    }

    #[test]
    fn every_path_has_the_kubelets_subresource() {
        for (path, expected) in [
            ("/pods", "pods,proxy"),
            ("/pods/", "pods,proxy"),
            ("/podsy", "proxy"),
            ("/runningpods/", "pods,proxy"),
            ("/healthz", "healthz,proxy"),
            ("/healthz/ping", "healthz,proxy"),
            ("/configz", "configz,proxy"),
            ("/stats/summary", "stats"),
            ("/metrics", "metrics"),
            ("/metrics/resource", "metrics"),
            ("/metrics/../exec/a/b/c", "metrics"),
            ("/logs/syslog", "log"),
            ("/containerLogs/ns/pod/c", "log,proxy"),
            ("/", "proxy"),
            ("/debug/pprof/profile", "proxy"),
            ("/%65xec/ns/pod/c", "proxy"),
            ("/placement", "placement"),
            ("/placement/fit", "placement"),
            ("/placement/../exec/a/b/c", "placement"),
            ("/placements", "proxy"),
            ("/%70lacement/fit", "proxy"),
        ] {
            assert_eq!(of("GET", path, false), ("get", expected.to_owned()), "{path}");
        }
    }

    #[test]
    fn only_placement_has_an_audience_of_its_own() {
        let audience = |method: &str, path: &str| {
            let request = Request::builder().method(method).uri(path).body(()).unwrap();
            RequestAttributes::from_request(&request).token_audience()
        };
        for path in ["/placement", "/placement/fit", "/placement/other"] {
            assert_eq!(audience("POST", path), Some("placement.virtual-kubelet.io"), "{path}");
        }
        let own = SUBRESOURCES.iter().map(|(route, ..)| *route).filter(|route| *route != "/placement");
        let others = ["/", "/placements", "/placements/fit", "/%70lacement/fit", "/debug/pprof/profile"];
        for path in own.chain(EXEC_PATHS).chain(others) {
            for method in ["GET", "POST", "OPTIONS"] {
                assert_eq!(audience(method, path), None, "{method} {path}");
            }
        }
    }

    #[test]
    fn verbs_follow_the_method() {
        for (method, verb) in [
            ("GET", "get"),
            ("HEAD", "get"),
            ("POST", "create"),
            ("PUT", "update"),
            ("PATCH", "patch"),
            ("DELETE", "delete"),
            ("OPTIONS", "*"),
            ("BREW", "*"),
        ] {
            assert_eq!(of(method, "/pods", false).0, verb, "{method}");
        }
    }

    #[test]
    fn exec_like_paths_and_upgrades_need_create_for_any_method() {
        for path in ["/exec/ns/p/c", "/attach/ns/p/c", "/run/ns/p/c", "/portForward/ns/p", "/exec"] {
            assert_eq!(of("GET", path, false), ("create", "proxy".to_owned()), "{path}");
            assert_eq!(of("GET", path, true), ("create", "proxy".to_owned()), "{path}");
        }
        assert_eq!(of("GET", "/somewhere", true).0, "create");
        assert_eq!(of("GET", "/containerLogs/ns/p/c", true).0, "create");
    }

    #[test]
    fn the_error_message_is_the_kubelets() {
        let request = Request::builder().uri("/pods").body(()).unwrap();
        assert_eq!(
            RequestAttributes::from_request(&request).forbidden_message("jane"),
            "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }
}
