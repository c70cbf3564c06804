//! Log options in the query, parsed and validated as in Kubernetes.

use std::time::Duration;

use http::StatusCode;
use jiff::Timestamp;
use vk_provider::ability::{LogOptions, Output, Since};

use super::super::QueryParams;
use crate::http_error::HttpError;

/// Parses the options. As in the kubelet, malformed values are a 400 and invalid ones a 422.
pub(super) fn parse(query: &QueryParams) -> Result<LogOptions, HttpError> {
    let undecodable = |message: String| HttpError::bad_request(format!("unable to decode query: {message}"));
    let invalid = |message: String| {
        HttpError::new(StatusCode::UNPROCESSABLE_ENTITY, format!("invalid log options: {message}"))
    };
    let at_least = |name: &str, least: u64| {
        let Some(number) = query.number(name).map_err(undecodable)? else { return Ok(None) };
        match u64::try_from(number) {
            Ok(number) if number >= least => Ok(Some(number)),
            _ => Err(invalid(format!("{name}: {number} is less than {least}"))),
        }
    };
    // The old name of tailLines.
    let tail = match query.get("tail") {
        Some("all") => None,
        Some(text) if !text.is_empty() => at_least("tail", 0)?,
        _ => at_least("tailLines", 0)?,
    };
    let ago = at_least("sinceSeconds", 1)?.map(Duration::from_secs).map(Since::Ago);
    let time = query.get("sinceTime").filter(|text| !text.is_empty());
    let time = time
        .map(|text| {
            let parsed: Result<Timestamp, _> = text.parse();
            parsed
                .map(Since::Time)
                .map_err(|_| undecodable(format!("sinceTime: {text:?} is not an RFC 3339 time")))
        })
        .transpose()?;
    if ago.is_some() && time.is_some() {
        return Err(invalid("at most one of sinceSeconds and sinceTime may be given".to_owned()));
    }
    let output = match query.get("stream") {
        None | Some("" | "All") => Output::All,
        Some("Stdout") => Output::Stdout,
        Some("Stderr") => Output::Stderr,
        Some(other) => {
            return Err(invalid(format!("stream: {other:?} is not one of All, Stdout and Stderr")));
        }
    };
    if output != Output::All && tail.is_some() {
        return Err(invalid("tailLines and a single stream cannot be combined".to_owned()));
    }
    Ok(LogOptions {
        tail,
        since: ago.or(time),
        limit_bytes: at_least("limitBytes", 1)?,
        timestamps: query.is_on("timestamps"),
        follow: query.is_on("follow"),
        previous: query.is_on("previous"),
        output,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(query: &str) -> Result<LogOptions, HttpError> {
        parse(&QueryParams::from_uri(&format!("/x?{query}").parse().unwrap()))
    }

    #[test]
    fn every_option_is_read() {
        let all =
            options("tailLines=5&limitBytes=7&sinceSeconds=9&timestamps=true&follow=1&previous=").unwrap();
        assert_eq!(
            all,
            LogOptions {
                tail: Some(5),
                limit_bytes: Some(7),
                since: Some(Since::Ago(Duration::from_secs(9))),
                timestamps: true,
                follow: true,
                previous: true,
                output: Output::All,
            }
        );
        assert_eq!(options("").unwrap(), LogOptions::default());
        assert_eq!(options("follow=false&timestamps=0").unwrap(), LogOptions::default());
        assert_eq!(options("stream=Stderr").unwrap().output, Output::Stderr);
        let time = options("sinceTime=2026-01-01T00:00:00%2B01:00").unwrap().since;
        assert_eq!(time, Some(Since::Time("2025-12-31T23:00:00Z".parse().unwrap())));
    }

    #[test]
    fn no_tail_differs_from_a_tail_of_zero() {
        assert_eq!(options("tailLines=0").unwrap().tail, Some(0));
        assert_eq!(options("tailLines=").unwrap().tail, None);
        assert_eq!(options("tail=all").unwrap().tail, None);
        assert_eq!(options("tail=3&tailLines=9").unwrap().tail, Some(3));
    }

    #[test]
    fn bad_options_are_named() {
        for (query, status, expected) in [
            ("tailLines=-1", 422, "tailLines"),
            ("tailLines=many", 400, "tailLines"),
            ("limitBytes=0", 422, "limitBytes"),
            ("sinceSeconds=0", 422, "sinceSeconds"),
            ("sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "sinceTime"),
            ("sinceTime=yesterday", 400, "yesterday"),
            ("stream=Both", 422, "Stdout"),
            ("stream=Stdout&tailLines=1", 422, "tailLines"),
        ] {
            let error = options(query).unwrap_err();
            assert_eq!(error.status.as_u16(), status, "{query}: {error:?}");
            assert!(error.message.contains(expected), "{query}: {error:?}");
        }
    }
}
