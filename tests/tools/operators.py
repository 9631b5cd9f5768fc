"""Tests of tools/workloads/drawing: drawn operators allocate and free in torch's order, as its profiler
shows that. What is made is named by letters in turn, with its size in units behind: "+a1 +b2 -a"."""

import random
import string
import unittest

import here  # first: it knows where the tools are
from drawing import eager, graphnet, layers, settings, translation, vision
from drawing.graph import ALLOC, FREE, GRAD, REDUCE, SIDE
from drawing.image_ops import ImageOps
from drawing.model import Decoder, Model, compile_program
from drawing.optimizer import Optimizer
from drawing.run import Run
from drawing.sharding import gathering
from drawing.snapshot import Memory


class Tale:
    """What was made and freed, in letters."""

    def __init__(self, unit):
        self.unit = unit
        self.names = {}
        self.words = []

    def made(self, key, size):
        self.names[key] = name = string.ascii_letters[len(self.names)]
        self.words.append("+%s%g" % (name, size / self.unit))

    def freed(self, key):
        self.words.append("-" + self.names[key])

    def take(self):
        """The words since the last time."""
        words, self.words = self.words, []
        return " ".join(words)


def given(ops, shape, item=2):
    """What something before has made, and wants a gradient of."""
    return ops.unary(ops.input(shape, item, gradient=True), "nothing")


def steps(build, unit, autocast=False, reentrant=False):
    """Forward's and backward's words of what build(ops) gives; "=a" is a parameter's gradient, "*"
    says that the next is another stream's, and "|" that a block's gradients are reduced."""
    ops = ImageOps(True, autocast, reentrant)
    program = compile_program(ops, build(ops), False)
    tale, tales = Tale(unit), []
    for each in (program.forward, program.backward):
        for kind, slot, size in each:
            if kind in (ALLOC, SIDE):
                tale.words += ["*"] * (kind == SIDE)
                tale.made(slot, size)
            elif kind == FREE:
                tale.freed(slot)
            elif kind == REDUCE:
                tale.words.append("|")
            elif kind == GRAD:
                tale.words.append("=%s" % tale.names[size])
        tales.append(tale.take())
    return tales


class Steps(unittest.TestCase):
    """The steps of one optimizer over some parameters."""

    def step(self, sizes, items=None, clip=False, **config):
        """The words of a first step and of a later one."""
        memory, told = Memory(), []
        run = type("Run", (), {"memory": memory, "keep": staticmethod(memory.alloc)})
        trained = [layers.Parameter(i, (size // 4,), 4) for i, size in enumerate(sizes)]
        optimizer = Optimizer(dict(config, clip=clip), trained, sizes, items or [4] * len(sizes))
        for _ in range(2):
            memory.events.clear()
            optimizer.step(run)
            tale = Tale(4)
            for action, address, size, *_ in memory.events:
                if action == "alloc":
                    tale.made(address, size)
                elif action == "free_completed":
                    tale.freed(address)
            told.append(tale.take())
        return told

    def test_a_loops_quotient_lives_until_the_next_one_is_made(self):
        _, later = self.step([4, 8, 12], optimizer="adam", optimizer_way="loop")
        self.assertEqual(later, "+a1 +b1 -a +c2 +d2 -c -b +e3 +f3 -e -d -f")

    def test_foreach_keeps_a_types_roots_until_the_next_types_are_made(self):
        _, later = self.step([4, 8, 12], [4, 4, 2], optimizer="adam", optimizer_way="foreach")
        self.assertEqual(later, "+a3 +b1 +c2 -a -c -b")

    def test_fused_sgd_makes_momenta_once_and_nothing_else(self):
        told = self.step([4, 8, 12], optimizer="sgd", optimizer_way="fused")
        self.assertEqual(told, ["+a1 +b2 +c3", ""])

    def test_clipping_is_foreach_whatever_the_optimizer_is_and_frees_the_total_last(self):
        clips = "+a2 +b1 +c1 -a +d2 +e1 -d -c -b +f1 +g1 +h1 -g -f +i1 -h -i -e"
        for way, step in (("fused", ""), ("loop", " +j1 -j +k2 -k")):
            _, later = self.step([4, 8], clip=True, optimizer="sgd", optimizer_way=way)
            self.assertEqual(later, clips + step)


class Operators(unittest.TestCase):
    """Forward and backward of some operators. The first tensor made is what something before gives,
    the last one its gradient."""

    def test_a_power_has_two_temporaries_in_backward(self):
        def loss(ops):
            return ops.mean(ops.power(given(ops, (1, 8), 4)))

        forward, backward = steps(loss, 32)
        self.assertEqual(forward, "+a1 +b1 +c0.125 -b")
        self.assertEqual(backward, "+d1 +e1 +f1 +g1 -f -e -d -a +h1 -g")

    def test_rms_norm_in_parts(self):
        norm = layers.Norm(layers.Weights(2), 8, "rms-parts")
        forward, backward = steps(lambda ops: norm(ops, given(ops, (1, 8))), 32)
        # In fp32, its square, the mean, the root, the product, that in bf16, times the weight.
        self.assertEqual(
            forward, "+a0.5 +b1 -a +c1 +d0.125 -c +e0.125 +f0.125 -e +g1 +h0.5 +i0.5 -g -d"
        )
        self.assertEqual(
            backward,
            "+j0.5 +k0.5 -h =k +l1 -j +m1 +n1 +o0.125 -m -l +p0.125 +q0.125 +r0.125 -q -p -o -f "
            "+s1 -r +t1 +u1 +v1 -u -t -s -b -v +w0.5 -n +x0.5 -w",
        )

    def test_norms_and_resizing_are_fp32_under_autocast(self):
        weights = layers.Weights(4)
        scale = [weights.make(32), weights.make(32)]

        def norm(ops):
            return ops.group_norm(given(ops, (1, 32, 8, 8)), *scale, 32)

        forward, backward = steps(norm, 4096, autocast=True)
        self.assertEqual(forward, "+a1 +b2 -a +c2 +d0.03125 +e0.03125")
        self.assertEqual(backward, "+f2 +g0.03125 +h0.03125 -b -d -e =g =h +i1 -f +j1 -i")
        forward, backward = steps(lambda ops: ops.resize(given(ops, (1, 1, 8, 8)), 16, 16), 128, True)
        self.assertEqual(forward, "+a1 +b2 -a +c8 -b")
        self.assertEqual(backward, "+d2 +e1 -d +f1 -e")

    def test_a_convolution_casts_bias_weight_and_input_in_this_order(self):
        weights = layers.Weights(4)
        weight, bias = weights.make(4, 4, 1, 1), weights.make(4)
        forward, _ = steps(lambda ops: ops.conv(given(ops, (1, 4, 4, 8), 4), weight, bias), 1, True)
        self.assertEqual(forward, "+a512 +b8 +c32 +d256 -a +e256 -b")

    def test_a_skips_gradient_is_a_view_that_a_convolution_copies(self):
        weights = layers.Weights(2)
        one, two = weights.make(4, 4, 1, 1), weights.make(4, 8, 1, 1)

        def net(ops):
            skip = ops.conv(given(ops, (1, 4, 8, 8)), one)
            y = ops.conv(ops.unary(skip), one)
            return ops.conv(ops.concatenate([y, skip], (1, 8, 8, 8)), two)

        forward, backward = steps(net, 512)
        self.assertEqual(forward, "+a1 +b1 +c1 +d1 +e2 -d +f1")
        # g, of both, lives until the skip's other gradient, l, is added to it into m: not in place.
        self.assertEqual(
            backward,
            "+g2 +h0.125 -e =h +i1 +j1 +k0.0625 -i -c +l1 -j -b +m1 -g -l "
            "+n1 +o0.0625 -m -a -o =k +p1 -n",
        )

    def test_a_concatenation_is_of_the_widest_type_and_casts_gradients_back(self):
        def both(ops):
            wide, narrow = given(ops, (1, 8), 4), given(ops, (1, 8), 2)
            return ops.concatenate([wide, narrow], (1, 16))

        forward, backward = steps(both, 32)
        self.assertEqual(forward, "+a1 +b0.5 +c2 -b -a")
        self.assertEqual(backward, "+d0.5 +e0.5 -d +f1")

    def test_loras_thin_result_is_scaled_and_added_in_its_own_type(self):
        weights = layers.Weights(2)
        weights.training = False
        adapted = layers.Adapted(weights, 64, 64, False)
        weights.training = True
        adapted.adapt(weights, 1, 0.0, 4)
        forward, backward = steps(lambda ops: adapted(ops, given(ops, (1, 64))), 256)
        self.assertEqual(
            forward, "+a0.5 +b0.5 +c1 -a +d0.015625 +e1 +f1 -e +g1 -f -b +h0.5 -g"
        )
        self.assertTrue(backward.startswith("+i1 +j0.5 +k1 -i +l1 +m0.015625 -k -d =l"), backward)

    def test_rotary_halves_have_gradients_of_the_whole_and_angles_the_residuals_type(self):
        def turned(ops):
            angles = [ops.input((1, 8), layers.Rotary.item(ops)) for _ in range(2)]
            return layers.Rotary.turn(ops, ops.permuted(given(ops, (1, 8))), angles)

        forward, backward = steps(turned, 16)
        self.assertEqual(forward, "+a1 +b1 +c0.5 +d1 -c -a +e1 -d +f1 -e -b")
        self.assertEqual(backward, "+g1 +h0.5 +i1 -h +j1 -g -j +k1 -k +l1 -i +m1 -l")
        forward, backward = steps(turned, 16, autocast=True)
        self.assertEqual(forward, "+a1 +b2 +c0.5 +d1 -c -a +e2 -d +f2 -e -b")
        self.assertEqual(
            backward, "+g2 +h1 -g +i0.5 +j1 -i +k1 -h -k +l2 +m1 -l -m +n1 -j +o1 -n"
        )

    def test_channels_last_are_copied_for_a_group_norm_and_back_for_a_convolution(self):
        weights = layers.Weights(2)
        scale = [weights.make(32), weights.make(32)]
        weight = weights.make(32, 32, 1, 1)

        def residual(ops):
            ops.channels_last = True
            y = ops.unary(ops.group_norm(given(ops, (1, 32, 8, 8)), *scale, 32))
            return ops.conv(y, weight, x_first=True, y_first=True)

        forward, backward = steps(residual, 4096)
        # x and its copy, the norm's result and sums, its activation, that copied, what comes of it.
        self.assertEqual(
            forward, "+a1 +b1 +c1 +d0.015625 +e0.015625 -a +f1 +g1 +h1 -g",
        )
        self.assertEqual(
            backward,
            "+i1 +j1 +k1 +l0.5 -j -i -f =l +m1 -k -c +n1 +o1 +p0.015625 +q0.015625 -n -m -b -d -e =p =q "
            "+r1 -o",
        )

    def test_focal_loss(self):
        def loss(ops):
            return vision.focal_loss(ops, given(ops, (64, 4), 4), ops.input((64, 4), 4))

        forward, backward = steps(loss, 1024)
        self.assertEqual(
            forward,
            "+a1 +b1 +c1 +d1 -c +e1 +f1 +g1 +h1 -f +i1 -h -e +j1 +k1 +l1 +m1 +n1 +o1 -n +p1 -o -m +q1 "
            "-l +r0.00390625 -q -i",
        )
        self.assertEqual(
            backward,
            "+s1 -p +t1 +u1 -s -k -d +v1 +w1 +x1 -w -v -t -j +y1 -x +z1 -g +A1 -z +B1 -y -B +C1 -u -a "
            "+D1 -A -b -D +E1 -C",
        )

    def test_gelu_in_parts(self):
        def activated(ops):
            return layers.gelu_in_parts(ops, given(ops, (4, 8)))

        forward, backward = steps(activated, 64)
        self.assertEqual(forward, "+a1 +b1 +c1 +d1 -c +e1 -d +f1 -e +g1 -f +h1 +i1")
        self.assertEqual(
            backward,
            "+j1 +k1 -h -b +l1 -j -g +m1 -l +n1 +o1 +p1 +q1 -p -o -n -a -q +r1 -k -r +s1 -m",
        )
        # With autocast a GPU's power is fp32, and what comes behind it is so, too.
        forward, backward = steps(activated, 64, autocast=True)
        self.assertEqual(forward, "+a1 +b1 +c2 +d2 +e2 -d +f2 -e +g2 -f +h2 -g +i2 +j2 -a")
        self.assertEqual(
            backward,
            "+k2 +l2 +m1 -l -i -b +n2 -k -h +o2 -n +p1 +q2 -o +r2 +s2 +t2 -s -r -q -c +u1 -t -u +v1 -m "
            "-v +w1 -p",
        )

    def loss_of(self, again):
        """Of 12 tokens in three pieces, whose scores in bf16 are the unit."""

        class Bare(Model):
            config = {"loss_pieces": 3, "loss_again": again}

            def __init__(self):
                pass

        weight = layers.Weights(2).make(64, 8)
        tokens = (1, 12)
        return steps(
            lambda ops: Bare().loss(ops, given(ops, tokens + (8,)), ops.input(tokens, 8), weight), 512
        )

    def test_a_loss_in_pieces_adds_the_weights_gradients_up(self):
        # Of a piece: scores, the same in fp32, their logarithms; in backward three more.
        forward, backward = self.loss_of(False)
        piece = "+c1 +d2 -c +e2 +f0.0078125 +g0.0078125 -d"
        self.assertTrue(forward.startswith("+a0.375 +b0.1875 %s +h1" % piece), forward)
        pieces = [
            "+t2 -r +u2 -t -p +v1 -u +w2 +x0.125 -v",
            "+y2 -l +z2 -y -j +A1 -z +B2 +C0.125 -A +D2 -w -B",
            "+E2 -b -g +F2 -E -e +G1 -F +H2 +I0.125 -G -a -H =D",
            "+J0.375 -I -C -x +K0.375 -J",
        ]
        self.assertEqual(backward, " ".join(pieces))

    def test_pieces_that_run_again_leave_their_losses_alone(self):
        forward, backward = self.loss_of(True)
        piece = "+c1 +d2 -c +e2 +f0.0078125 +g0.0078125 -g -e -d"
        self.assertTrue(forward.startswith("+a0.375 +b0.1875 %s +h1" % piece), forward)
        # t's copy, u, is a variable's, which goes with the frame that runs again.
        again = "+t1 +u2 -t +v2 +w0.0078125 +x0.0078125 -w -u"
        self.assertTrue(
            backward.startswith(again + " +y2 -x +z2 -v -y +A1 -z +B2 +C0.125 -A +D1 "), backward
        )
        self.assertTrue(backward.endswith("-V -W =N +Y0.375 -X -M -C +Z0.375 -Y"), backward)

    def three_products(self, shape, bias):
        """Backward of a sum of the tanh of three products of one input."""
        weights = layers.Weights(4)
        linears = [layers.Linear(weights, 8, 8, bias) for _ in range(3)]

        def loss(ops):
            y = given(ops, shape, 4)
            return ops.sum_of([ops.unary(linear(ops, y), "output") for linear in linears])

        return steps(loss, 256)[1]

    def test_a_products_gradients_are_views_that_nothing_is_added_into(self):
        # The input's first two gradients, l and o, are added into p, and the third, s, into that.
        self.assertEqual(
            self.three_products((2, 4, 8), False),
            "+j1 -g +k1 +l1 -j =k +m1 -e +n1 +o1 -m +p1 -l -o =n +q1 -c +r1 +s1 -q -a -s =r +t1 -p",
        )
        self.assertEqual(
            self.three_products((2, 4, 8), True),
            "+j1 -g +k1 +l1 +m0.125 -j =m =l +n1 -e +o1 +p1 +q0.125 -n =q +r1 -k -o =p +s1 -c +t1 +u1 "
            "+v0.125 -s -a =v -t =u +w1 -r",
        )
        # Where the input is a matrix its gradient is no view, and o is added into l.
        self.assertEqual(
            self.three_products((8, 8), False),
            "+j1 -g +k1 +l1 -j =k +m1 -e +n1 +o1 -m -o =n +p1 -c +q1 +r1 -p -a -r =q +s1 -l",
        )

    def eager(self, kv_heads, dropout, wide, autocast=False):
        """Of 2 samples, 4 heads of 8 and 16 tokens, whose scores are the unit."""

        def attended(ops):
            tensors = [given(ops, (2, 16, 8 * heads)) for heads in (4, kv_heads, kv_heads)]
            tensors = [ops.permuted(tensor) for tensor in tensors]
            mask = ops.input((2, 16, 16), 4 if autocast else 2)
            sizes = (2, 4, kv_heads, (16, 16))
            y, _ = eager.attend(ops, tensors, *sizes, mask, dropout, wide)
            ops.hold(*tensors)
            return y

        return steps(attended, 4096, autocast)

    def test_eager_attention_copies_its_factors_and_keeps_chances_and_a_mask(self):
        # On a CPU dropout has its mask in the chances' type, on a GPU a byte an element.
        forward, backward = self.eager(4, 0.1, False)
        self.assertEqual(
            forward,
            "+a0.5 +b0.5 +c0.5 +d0.5 +e0.5 +f1 +g1 -f +h1 -g +i1 -h +j0.5 +k1 +l0.5 +m0.5 +n0.5 -m "
            "-c -b -a",
        )
        self.assertEqual(
            backward,
            "+o0.5 +p0.5 +q1 -o -l -k +r1 -q -j +s1 -r -i +t1 -s +u0.5 +v0.5 -t -e -d "
            "+w0.5 -p +x0.5 -u +y0.5 -v +z0.5 -w +A0.5 -x +B0.5 -y",
        )

    def test_repeated_keys_are_a_copy_whose_gradient_is_summed_and_a_wide_softmax_is_fp32(self):
        forward, backward = self.eager(2, 0.0, True)
        self.assertEqual(
            forward,
            "+a0.5 +b0.25 +c0.25 +d0.5 +e0.5 +f0.5 +g1 +h1 -g +i1 -h +j2 +k2 -j +l1 -i +m0.5 +n0.5 "
            "-m -c -b -a",
        )
        self.assertEqual(
            backward,
            "+o0.5 +p0.5 +q1 -o -e -l +r2 -q +s2 -r -k +t1 -s +u1 -t +v0.5 +w0.5 -u -d -f +x0.25 -p "
            "+y0.25 -v +z0.25 -x +A0.25 -y +B0.5 -w +C0.25 -z +D0.25 -A +E0.5 -B",
        )

    def test_autocast_adds_a_mask_in_fp32_and_softmax_is_fp32(self):
        # On a CPU scores in bf16 are copied to be added to what is in fp32.
        forward, backward = self.eager(4, 0.0, False, autocast=True)
        self.assertIn("+f1 +g1 -f +h2 -g +i2 -h +j1 +k0.5 +l0.5", forward)
        self.assertIn("+p1 -n -k -j +q2 -p +r2 -q -i +s1 -r +t1 -s", backward)

    @staticmethod
    def projected(fused, samples):
        """Eager attention over what is projected, in one product or three, of so many samples."""
        config = dict(hidden=32, heads=4, bias=False, fused=fused, dropout=0.0)
        config.update(attention="eager", wide_softmax=False)
        attention = layers.Attention(layers.Weights(2), config, layers.Linear)

        def attended(ops):
            tensors = attention.project(ops, given(ops, (samples, 16, 32)), None)
            mask = ops.input((samples, 16, 16), 2)
            y, _ = layers.attend(ops, config, tensors, (4, 4), (16, 16), mask)
            ops.hold(*tensors)
            return y

        return attended

    def test_eager_attention_of_one_projection_joins_its_gradients(self):
        attended = self.projected(True, 2)
        forward, backward = steps(attended, 4096)
        self.assertEqual(
            forward, "+a0.5 +b1.5 +c0.5 +d0.5 +e1 +f1 -e +g1 -f +h1 -g +i0.5 +j0.5 +k0.5 -j -b"
        )
        self.assertEqual(
            backward,
            "+l0.5 +m0.5 +n1 -l -i +o1 -n -h +p1 -o +q0.5 +r0.5 -p -d -c +s0.5 -r +t0.5 -m +u1.5 "
            "-s -q -t +v1.5 +w0.5 -u -a =v +x0.5 -w",
        )

    def test_keys_of_one_sample_have_a_gradient_that_is_a_view(self):
        attended = self.projected(False, 1)
        # The keys' is o, which their weight's gradient, t, and the input's, u, are made of; the others
        # are copied, into q and x's forerunner.
        self.assertEqual(
            steps(attended, 2048)[1],
            "+k0.5 +l1 -d +m1 -l -h +n1 -m +o0.5 +p0.5 -n -c -b +q0.5 -k +r1 +s0.5 -q =r +t1 +u0.5 -o "
            "+v0.5 -s -u =t +w0.5 -p +x1 +y0.5 -w -a -y =x +z0.5 -v",
        )

    def test_factors_that_autocast_casts_stay_until_their_product_is_there(self):
        def attended(ops):
            tensors = [given(ops, (2, 16, 32), 4) for _ in range(3)]
            mask = ops.input((2, 16, 16), 4)
            return eager.attend(ops, tensors, 2, 4, 4, (16, 16), mask, 0.0, False)[0]

        self.assertTrue(
            steps(attended, 4096, True)[0].startswith(
                "+a1 +b1 +c1 +d0.5 -b +e0.5 -a +f0.5 +g0.5 +h1 -e -d"
            )
        )

    def test_a_second_run_that_stops_early_has_the_variables_until_then(self):
        linear = layers.Linear(layers.Weights(2), 8, 8, False)

        def piece(x, ops):
            y = ops.unary(x, "nothing")
            u = ops.unary(y, "nothing")
            v = ops.unary(ops.unary(u, "output"), "output")
            total = ops.add(linear(ops, v), y)
            ops.hold(u, v)
            return ops.unary(total, "nothing")

        def net(ops):
            x = ops.unary(given(ops, (4, 8)), "nothing")
            return ops.unary(ops.checkpoint(lambda x: piece(x, ops), x), "output")

        # m and n are y and u, which are there until the run stops, behind p. x goes when nothing of the
        # piece is saved any more, before its first two operators have been gone back through.
        self.assertTrue(
            steps(net, 64)[1].endswith(
                "+m1 +n1 +o1 +p1 -n -m +q2 +r1 =q +s1 -p -r +t1 -o -b -s +u1 -t -u +v1 -l +w1 -v +x1 -w"
            ),
            steps(net, 64)[1],
        )

    def test_a_segments_own_backward_adds_to_a_parameters_gradient_in_place(self):
        linear = layers.Linear(layers.Weights(2), 8, 8, False)

        def net(ops):
            x = given(ops, (8, 8))
            halves = [
                ops.checkpoint(lambda x: ops.unary(linear(ops, x), "output"), x) for _ in range(2)
            ]
            return ops.add(*halves)

        self.assertEqual(
            steps(net, 128)[1],
            "+g1 +h1 -g +i1 -h +j1 +k1 -i +l1 +m1 -l +n1 -m +o1 +p1 -a -n -p +q1 -j -o =q +r1 -k",
        )
        self.assertEqual(
            steps(net, 128, reentrant=True)[1],
            "+g1 +h1 -g +i1 +j1 +k1 -i -h =j +l1 +m1 -l +n1 +o1 +p1 -n -m -a =o -p +q1 -k",
        )

    def test_a_segments_own_backward_adds_its_inputs_gradients_up_first(self):
        def net(ops):
            x = given(ops, (8,))
            y = ops.checkpoint(
                lambda x: ops.add(ops.unary(x), ops.add(ops.unary(x), ops.unary(x))), x
            )
            return ops.add(x, y)

        # m is added into l there, and goes; then x's other gradient, the seed, is added out of place.
        self.assertEqual(
            steps(net, 16, reentrant=True)[1],
            "+h1 +i1 +j1 +k1 -j -i +l1 -k -h +m1 +n1 -n +o1 -l -a -o +p1 -m +q1 -p",
        )

    def test_a_cast_that_lora_reads_is_a_variable(self):
        weights = layers.Weights(2)
        adapted = layers.Adapted(weights, 64, 64, False)
        adapted.adapt(weights, 1, 0.0, 4)
        ops = ImageOps(False)
        program = compile_program(ops, adapted(ops, ops.input((1, 64), 2)), False)
        frees = [slot for kind, slot, _ in program.forward if kind == FREE]
        self.assertEqual(frees[-1], 1)

    def test_images_are_in_the_weights_type(self):
        for precision, item in (("autocast", 4), ("bf16", 2)):
            model = vision.UNet.__new__(vision.UNet)
            model.config = {"precision": precision}
            ops = ImageOps(True)
            self.assertEqual(model.cast(ops, ops.input((1, 3, 8, 8), 4)).item, item)

    def test_a_variable_of_a_residual_has_what_an_operator_takes(self):
        residual = vision.Residual(layers.Weights(4), 32, 32)
        # b and k are copies in fp32 for norms, f and o are activations, i and r what convolutions cast.
        self.assertEqual(
            steps(lambda ops: residual(ops, given(ops, (1, 32, 8, 8))), 4096, True)[0],
            "+a1 +b2 +c2 +d0.03125 +e0.03125 +f2 +g0.015625 +h4.5 +i1 +j1 -f +k2 +l2 +m0.03125 "
            "+n0.03125 -j +o2 +p0.015625 +q4.5 +r1 +s1 -o +t1 -s -a -p -g",
        )

    def test_a_residual_is_added_in_place(self):
        def block(ops):
            return ops.relu_in_place(ops.add_in_place(given(ops, (8,)), given(ops, (8,))))

        forward, _ = steps(block, 16)
        self.assertEqual(forward, "+a1 +b1 -b")

    def test_rows_are_added_in_place_and_saved_by_index_add_alone(self):
        def scattered(ops):
            return ops.scatter_add(given(ops, (8,)), ops.input((8,), 8), 4)

        def added(ops):
            (zeros,) = ops.run([], [((4,), 2)])
            return ops.add_at(zeros, given(ops, (8,)), ops.input((8,), 8))

        self.assertEqual(steps(scattered, 16), ["+a1 +b0.5 -a", "+c1 +d1 -c"])
        self.assertEqual(steps(added, 16), ["+a0.5 +b1", "+c1 -b +d1 -c"])

    def test_selected_rows_have_a_gradient_without_a_sort(self):
        forward, backward = steps(lambda ops: ops.select(given(ops, (4,)), ops.input((8,), 8), 8), 8)
        self.assertEqual((forward, backward), ("+a1 +b2 -a", "+c1 +d1 -c"))


class Sharded(unittest.TestCase):
    """fully_shard over two ranks on a CPU, without communication."""

    def blocks(self, precision):
        """Three blocks of two products with tanh between them; a weight is the unit."""
        weights = layers.Weights(2)
        blocks = [
            [layers.Linear(weights, *sides, False) for sides in ((8, 16), (16, 8))] for _ in range(3)
        ]
        config = {"gathered": "each", "precision": precision, "world": 2}
        spans = [[linear.weight for linear in block] for block in blocks]

        def net(ops):
            x, sharded = given(ops, (4, 8)), gathering(ops, config, spans)
            for number, (up, down) in enumerate(blocks):
                x = sharded.before(number, x)
                x = down(ops, ops.unary(up(ops, x), "output"))
                x = sharded.behind(number, x)
            return sharded.done(x)

        return steps(net, 256)

    def test_each_weight_has_a_storage_beside_what_is_gathered(self):
        forward, backward = self.blocks("bf16")
        # What is gathered goes when the next block's has been copied.
        self.assertEqual(
            forward,
            "+a0.25 * +b2 +c1 +d1 +e0.5 +f0.5 -e +g0.25 -d -c * +h2 +i1 +j1 -b +k0.5 +l0.5 -k "
            "+m0.25 -j -i * +n2 +o1 +p1 -h +q0.5 +r0.5 -q +s0.25 -p -o -n",
        )
        one = "+u1 +v1 -t * +w2 +x1 +y0.5 =x +z0.5 -y -r +A1 +B0.25 -z -m =A -u -v |"
        two = "+C1 +D1 -w * +E2 +F1 +G0.5 -B =F +H0.5 -G -l +I1 +J0.25 -H -g =I -C -D |"
        self.assertTrue(backward.startswith("* +t2 %s %s +K1 +L1 -E +M1" % (one, two)), backward)

    def test_shards_in_fp32_are_cast_before_they_are_gathered(self):
        forward, backward = self.blocks("master")
        self.assertTrue(forward.startswith("+a0.25 * +b1 * +c2 -b +d1 +e1 +f0.5"), forward)
        self.assertTrue(backward.startswith("* +w1 * +x2 -w +y1 +z1 -x * +A1 * +B2 -A"), backward)

    def test_a_blocks_last_gradient_stays_until_its_share_of_the_sum_is_there(self):
        def reduced(precision, **config):
            """Of two gradients of a unit, after those of another block and in a second microbatch."""
            run = Run.__new__(Run)
            run.memory, run.gradients, run.reducing, run.world = Memory(), {}, None, 2
            run.config = dict(config, precision=precision)
            told = []
            for names in ((0, 1), (2, 3), (0, 1)):
                for name in names:
                    run.gradients[name] = run.memory.alloc(256)
                run.reduce(names)
            tale = Tale(256)
            for action, address, size, *_ in run.memory.events:
                if action == "alloc":
                    tale.made(address, size)
                elif action == "free_completed":
                    tale.freed(address)
            return tale.take()

        # In the second microbatch a share is added to what is there.
        self.assertEqual(
            reduced("bf16", gathered="each"),
            "+a1 +b1 +c2 -a +d1 -b +e1 +f1 -c +g2 -e +h1 -f +i1 +j1 -g +k2 -i +l1 -j -l",
        )
        told = reduced("master", gathered="each")
        self.assertTrue(told.startswith("+a1 +b1 +c2 -a +d1 +e2 -d -b +f1 +g1 -c +h2 -f"), told)
        self.assertTrue(told.endswith("-h +m2 -k +n1 +o2 -n -l -o"), told)


class Variables(unittest.TestCase):
    """What lives in a forward without gradients is what variables and operators have."""

    def forward(self, build, unit, autocast=False):
        ops = ImageOps(False, autocast)
        tale = Tale(unit)
        for kind, slot, size in compile_program(ops, build(ops), False).forward:
            if kind == ALLOC:
                tale.made(slot, size)
            elif kind == FREE:
                tale.freed(slot)
        return tale.take()

    def test_a_graph_network_has_rows_until_the_sums_and_what_is_joined_until_the_message(self):
        config = dict(hidden=32, rows_by="select", graph_attention=False)
        messages = graphnet.Messages(layers.Weights(4), config)

        def net(ops):
            nodes, edges = (ops.input((count, 32), 4) for count in (8, 32))
            nodes, edges = messages(ops, nodes, edges, [ops.input((32,), 8) for _ in range(2)])
            ops.hold(edges)
            return nodes

        # d and e are rows, f is joined of them, o are the sums, p is joined of those and of a.
        self.assertTrue(
            self.forward(net, 4096, True).startswith(
                "+a0.25 +b0.0078125 +c0.0078125 -c -b +d1 +e1 +f3 +g0.015625 +h1.5 +i1.5 +j0.5 -i +k0.5 "
                "-j +l0.015625 +m0.5 +n0.5 -k -f +o0.125 -e -d +p0.5 +q0.03125"
            )
        )

    def test_an_experts_rows_and_result_stay_until_the_next_ones(self):
        config = dict(hidden=64, experts=2, chosen=1, routing="masked", expert_inner=64)
        experts = layers.Experts(
            layers.Weights(2), dict(config, bias=False, fused=False), layers.Linear
        )
        # j and q are the first one's, s and z the second one's; h are the sums.
        self.assertTrue(
            self.forward(
                lambda ops: experts(ops, ops.input((1, 64, 64), 2), (32, 32)), 4096
            ).endswith(
                "+j1 +k0.015625 +l1 +m1 -l +n1 +o1 -n -m +p1 -o +q1 -p -k -i +r0.125 +s1 -j +t0.015625 -f "
                "+u1 +v1 -u +w1 +x1 -w -v +y1 -x +z1 -y -t -q -r -z -s -g"
            )
        )

    def test_cross_attentions_factors_stay_until_it_returns(self):
        config = dict(settings.DEFAULTS, hidden=64, heads=4, bias=False, fused=False)
        config.update(inner=64, mlp="gelu")
        block = translation.DecoderBlock(layers.Weights(2), config)

        def net(ops):
            x, memory = (ops.input((1, length, 64), 2) for length in (32, 64))
            return block(ops, x, memory, None, None)

        # o and p are queries, and keys and values; j and t are the two attentions' results.
        self.assertTrue(
            self.forward(net, 4096).endswith(
                "+o1 -l +p4 +q0.00195312 +r0.00195312 +s1 -r -q +t1 -s -p -o -j +u1 -k +v1 +w0.03125 "
                "+x0.03125 -x -w +y1 -v +z1 -y +A1 -z +B1 -A -u -t"
            )
        )

    def decoder(self, **config):
        config = dict(settings.DEFAULTS, hidden=64, heads=4, layers=1, inner=64, vocabulary=64, **config)
        return Decoder(dict(config, mlp="gelu", precision="bf16")).trace(0, (1, 16, None))

    def test_a_mask_is_there_until_the_last_norm_is_done(self):
        steps = self.decoder(attention="eager", norm="rms-parts").forward
        made = [number for number, (kind, _, _) in enumerate(steps) if kind == ALLOC]
        slots = [steps[number][1] for number in made]
        # Behind the truth values, of a byte each, comes the mask.
        values = next(number for number in made if steps[number][2] == 256)
        mask = slots[made.index(values) + 1]
        freed = steps.index((FREE, mask, 0))
        # The scores in bf16 are made next, of 16 tokens for 64 words.
        behind = next(steps[number] for number in made if number > freed)
        self.assertEqual(behind[2], 2 * 16 * 64)

    def test_an_embedding_that_wants_a_gradient_goes_with_the_loss(self):
        lora = dict(rank=1, lora_item=2, lora_dropout=0.0, norms_trained=False)
        program = self.decoder(norm="rms-parts", **lora)
        (kept,) = program.kept
        self.assertNotIn((FREE, kept, 0), program.forward + program.backward)

    def test_angles_are_scaled_and_cast_at_the_end(self):
        self.assertEqual(
            self.forward(lambda ops: ops.copied(layers.Rotary.angles(ops, 8, 16)[0]), 256),
            "+a1 +b2 +c2 +d2 -c +e2 +f2 -e +g1 +h1 -h -f -d -b -a +i1 -g",
        )


class Habits(unittest.TestCase):
    def test_only_models_of_language_are_offloaded_and_few_image_models_recomputed(self):
        drawn = [settings.draw(random.Random(seed), {}) for seed in range(1500)]
        hosts = {one["family"] for one in drawn if one["optimizer_way"] == "host"}
        self.assertEqual(hosts, set(settings.LANGUAGES))
        images = [one for one in drawn if one["family"] in settings.IMAGES]
        again = sum(one["recompute"] == "layers" for one in images) / len(images)
        self.assertTrue(0.05 < again < 0.15, again)

    def test_what_is_given_has_what_goes_with_it(self):
        for seed in range(100):
            dice = random.Random(seed)
            one = settings.draw(dice, {"family": "decoder", "sharding": "layers", "lag": 0.5})
            self.assertEqual(one["gathered"], "one")
            one = settings.draw(dice, {"family": "decoder", "outputs_stay": True})
            self.assertEqual(one["loss_pieces"], 1)

    def test_gradients_that_stay_are_drawn_where_nothing_sums_them_in_buffers(self):
        for seed in range(300):
            one = settings.draw(random.Random(seed), {})
            if one["gradients_stay"]:
                self.assertEqual((one["precision"] == "master", one["sharding"]), (False, "none"))


if __name__ == "__main__":
    unittest.main()
