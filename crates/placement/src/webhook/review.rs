//! Answers an AdmissionReview.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::api::core::v1::Pod;
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, json};

use crate::{
    convert::{Conversion, Settings, convert, exemption},
    names,
};

#[cfg(test)]
mod tests;

const API_VERSION: &str = "admission.k8s.io/v1";
const KIND: &str = "AdmissionReview";
/// HTTP status of a review that should not have been sent here.
const BAD_REQUEST: u16 = 400;

/// Who has asked for conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptIn {
    /// The pod, by its label.
    Label,
    /// Its namespace, of which the API server knows the labels.
    Namespace,
}

/// A request that is not an AdmissionReview, so that it cannot be answered with one.
#[derive(Debug, thiserror::Error)]
pub enum MalformedReview {
    /// Not JSON, or fields of other types.
    #[error("the request is not an AdmissionReview: {0}")]
    Json(#[from] serde_json::Error),
    /// Another kind or version.
    #[error(
        "the request is {kind} of {api_version}: this webhook answers {KIND} of {API_VERSION}; set `admissionReviewVersions: [v1]` in its \
         configuration"
    )]
    Kind {
        /// The version of the request.
        api_version: String,
        /// The kind of the request.
        kind: String,
    },
    /// A review without a request, such as an answer.
    #[error("the AdmissionReview has no request")]
    NoRequest,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Review {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    request: Option<IgnoredAny>,
}

/// A part of the request of a review. Each is parsed for itself: what is not needed is skipped, because a `Value` needs many times the memory
/// of its text.
#[derive(Debug, Deserialize)]
struct ReviewOf<T> {
    request: T,
}

/// The part of an AdmissionRequest that says what it is about.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Request {
    uid: String,
    kind: GroupVersionKind,
    #[serde(default)]
    sub_resource: String,
    #[serde(default)]
    namespace: String,
    operation: String,
}

/// The part of an AdmissionRequest with the pod.
#[derive(Debug, Deserialize)]
struct PodRequest {
    object: Pod,
}

#[derive(Debug, Deserialize)]
struct GroupVersionKind {
    #[serde(default)]
    group: String,
    version: String,
    kind: String,
}

/// The answer to an AdmissionReview in JSON.
pub fn respond(body: &[u8], opt_in: OptIn, settings: &Settings) -> Result<Value, MalformedReview> {
    let review: Review = serde_json::from_slice(body)?;
    if review.api_version != API_VERSION || review.kind != KIND {
        return Err(MalformedReview::Kind { api_version: review.api_version, kind: review.kind });
    }
    review.request.ok_or(MalformedReview::NoRequest)?;
    let ReviewOf { request } = serde_json::from_slice(body)?;
    let response = answer(&request, body, opt_in, settings);
    Ok(json!({"apiVersion": API_VERSION, "kind": KIND, "response": response}))
}

fn answer(request: &Request, body: &[u8], opt_in: OptIn, settings: &Settings) -> Value {
    let GroupVersionKind { group, version, kind } = &request.kind;
    if !group.is_empty() || version != "v1" || kind != "Pod" || !request.sub_resource.is_empty() {
        let subresource = match request.sub_resource.as_str() {
            "" => String::new(),
            name => format!(", subresource {name}"),
        };
        let group = if group.is_empty() { String::new() } else { format!("{group}/") };
        return denial(
            &request.uid,
            &format!(
                "this webhook converts pods (v1), and got {kind} ({group}{version}{subresource}): set the rules of its configuration to \
                 resource pods, apiVersion v1"
            ),
        );
    }
    if request.operation != "CREATE" {
        return allowance(&request.uid);
    }
    let pod = match serde_json::from_slice(body) {
        Ok(ReviewOf { request: PodRequest { object } }) => object,
        Err(error) => return denial(&request.uid, &format!("the pod cannot be read: {error}")),
    };
    let labels = pod.metadata.labels.as_ref();
    let has_label =
        labels.and_then(|labels| labels.get(names::VIRTUAL_POD)).is_some_and(|value| value == "true");
    if (opt_in == OptIn::Label && !has_label) || exemption(&pod, &request.namespace).is_some() {
        return allowance(&request.uid);
    }
    let Conversion { patch, not_converted } = convert(&pod, settings);
    let mut response = allowance(&request.uid);
    if !not_converted.is_empty() {
        // Shown by kubectl.
        response["warnings"] = json!(not_converted);
    }
    if !patch.is_empty() {
        response["patchType"] = json!("JSONPatch");
        response["patch"] = json!(STANDARD.encode(json!(patch).to_string()));
    }
    response
}

fn allowance(uid: &str) -> Value {
    json!({"uid": uid, "allowed": true})
}

fn denial(uid: &str, message: &str) -> Value {
    json!({"uid": uid, "allowed": false, "status": {"code": BAD_REQUEST, "message": message}})
}
