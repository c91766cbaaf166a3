"""Views of Django REST framework: a class, a viewset's action, and a function."""

from __future__ import annotations

from typing import Any

from django.urls import path
from django.utils.decorators import method_decorator
from rest_framework import serializers
from rest_framework.decorators import action, api_view
from rest_framework.exceptions import NotFound
from rest_framework.mixins import CreateModelMixin
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import GenericViewSet, ViewSet
from tests.http.wsgi_apps import handlers

from oncekey.http.django import attempt_of, idempotent
from oncekey.http.wsgi import leave_unstored


class Throttled(BaseThrottle):  # type: ignore[misc]
    def allow_request(self, request: Any, view: Any) -> bool:
        return "X-Busy" not in request.headers


class Payment(serializers.Serializer[Any]):  # type: ignore[misc]
    cents = serializers.IntegerField(min_value=1)


class Payments(APIView):  # type: ignore[misc]
    throttle_classes = (Throttled,)

    @idempotent(keep="7d")
    def post(self, request: Any) -> Response:
        number = handlers.effect("payments")
        payment = Payment(data=request.data)
        payment.is_valid(raise_exception=True)
        running = attempt_of(request)
        assert running is not None
        body = {"number": number, "cents": payment.validated_data["cents"], "fence": running.fence}
        return Response(body, 201, headers={"Location": f"/payments/{number}"})


@method_decorator(idempotent(), name="create")
class Orders(CreateModelMixin, GenericViewSet):  # type: ignore[misc]
    """The framework's own view: it validates before it calls the app."""

    serializer_class = Payment

    def perform_create(self, serializer: Any) -> None:
        handlers.effect("orders")
        if serializer.validated_data["cents"] == 13:
            raise serializers.ValidationError("of the app's own")


class OwnOrders(Orders):
    """The app's method around it may have done anything."""

    @idempotent()
    def create(self, request: Any) -> Response:
        handlers.effect("own orders")
        response: Response = super().create(request)
        return response


class Refunds(ViewSet):  # type: ignore[misc]
    @idempotent()
    def create(self, request: Any) -> Response:
        return Response({"number": handlers.effect("refunds")}, 201)

    @action(detail=False, methods=["post"])  # type: ignore[untyped-decorator]
    @idempotent()
    def lost(self, request: Any) -> Response:
        handlers.effect("lost")
        raise NotFound("no such refund")


@api_view(["POST"])  # type: ignore[untyped-decorator]
@idempotent()
def function(request: Any) -> Response:
    handlers.effect("function")
    if request.data.get("free"):
        leave_unstored(request)
        return Response({"sent": request.data}, 400)
    if request.data.get("fail"):
        raise ValueError("s3cret")
    return Response({"sent": request.data})


urls = [
    path("payments", Payments.as_view()),
    path("refunds", Refunds.as_view({"post": "create"})),
    path("refunds/lost", Refunds.as_view({"post": "lost"})),
    path("function", function),
    path("generic-orders", Orders.as_view({"post": "create"})),
    path("own-orders", OwnOrders.as_view({"post": "create"})),
]
