//! What a request wants, in the words of authorization: a verb on a subresource of the node.

use http::{Method, Request, header};

/// What somebody must be allowed to do for a request to be served: the verb, on any of the subresources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// The verb.
    pub verb: &'static str,
    /// Subresources of `nodes`, the narrowest first. Whoever may do it to one of them may do it.
    pub subresources: Vec<&'static str>,
}

/// Paths whose subresource is their own. Those with `true` are also open to whoever has `nodes/proxy`, as in the kubelet:
/// the others were never part of it.
///
/// `/containerLogs` is the one that the kubelet keeps under `proxy`. Here `nodes/log` suffices: it opens the node's log
/// files, in which on a real node the containers' logs are.
const FINE: [(&str, &str, bool); 9] = [
    ("/pods", "pods", true),
    ("/runningpods", "pods", true),
    ("/healthz", "healthz", true),
    ("/configz", "configz", true),
    ("/containerLogs", "log", true),
    ("/stats", "stats", false),
    ("/metrics", "metrics", false),
    ("/logs", "log", false),
    ("/checkpoint", "checkpoint", false),
];

/// What runs in containers, or reaches into them: never reading, whatever the method. A WebSocket begins with GET, and the
/// kubelet's `get nodes/proxy` for it lets readers run commands.
const ACTING: [&str; 4] = ["/exec", "/attach", "/run", "/portForward"];

// === impl Attributes ===

impl Attributes {
    /// What this request wants. By the path as it stands, which is also what routes are found by.
    pub fn of<B>(request: &Request<B>) -> Self {
        let path = request.uri().path();
        let fine = FINE.iter().find(|(route, ..)| within(path, route));
        let acting = ACTING.iter().any(|route| within(path, route));
        let verb = match *request.method() {
            _ if acting || request.headers().contains_key(header::UPGRADE) => "create",
            Method::GET | Method::HEAD => "get",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE => "delete",
            // Only for those who may do everything.
            _ => "*",
        };
        let subresources = match fine {
            Some((_, own, true)) => vec![*own, "proxy"],
            Some((_, own, false)) => vec![*own],
            None => vec!["proxy"],
        };
        Self { verb, subresources }
    }

    /// The refusal in the kubelet's words.
    pub fn refusal(&self, user: &str) -> String {
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
        let attributes = Attributes::of(&request.body(()).unwrap());
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
        ] {
            assert_eq!(of("GET", path, false), ("get", expected.to_owned()), "{path}");
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
    fn reaching_into_a_container_and_any_upgrade_is_create_whatever_the_method() {
        for path in ["/exec/ns/p/c", "/attach/ns/p/c", "/run/ns/p/c", "/portForward/ns/p", "/exec"] {
            assert_eq!(of("GET", path, false), ("create", "proxy".to_owned()), "{path}");
            assert_eq!(of("GET", path, true), ("create", "proxy".to_owned()), "{path}");
        }
        assert_eq!(of("GET", "/somewhere", true).0, "create");
        assert_eq!(of("GET", "/containerLogs/ns/p/c", true).0, "create");
    }

    #[test]
    fn a_refusal_reads_as_the_kubelets() {
        let request = Request::builder().uri("/pods").body(()).unwrap();
        assert_eq!(
            Attributes::of(&request).refusal("jane"),
            "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
        );
    }
}
